//! Limits on what the EnvoyFilters of one namespace may cost (T06).
//!
//! The limits count patches and bytes of their values, and no time: which patches apply is a function of the objects. Patches
//! over a limit are left out; the others of the same object apply.

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_engine::{Collection, Index};
use sluice_model::{
    ApplyTo, EnvoyFilter, EnvoyPatch, Kind, ObjectKey, ObjectMatch, PatchOperation, Reject, RejectCause,
    RouteTableMatch, Severity, Text, Timestamp,
};

use crate::inputs::RejectKey;
use crate::options::{GraphOptions, PatchLimits};

/// What each patch of an EnvoyFilter costs; `None` for an invalid one.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct FilterCosts {
    created: Timestamp,
    patches: Vec<Option<PatchCost>>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct PatchCost {
    /// Bytes of its value.
    bytes: usize,
    /// Whether the value is copied into every resource of a kind.
    is_repeated: bool,
}

/// A limit that a patch exceeds.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
enum ExceededLimit {
    Patches,
    Bytes,
    RepeatedBytes,
}

/// The patches of a namespace that are over a limit: object and index.
type Excess = BTreeMap<(ObjectKey, usize), ExceededLimit>;

/// EnvoyFilters without the patches over the limits, and findings about those.
pub(crate) struct LimitedFilters<'s> {
    /// The EnvoyFilters.
    pub(crate) filters: Collection<'s, ObjectKey, EnvoyFilter>,
    /// The findings.
    pub(crate) rejects: Collection<'s, RejectKey, Vec<Reject>>,
}

/// EnvoyFilters within the limits of their namespace. Older objects come first.
/// Key: `ObjectKey`. From: `envoy_filters`. Changes when: the object does, or patches of its namespace come over a limit.
/// Size: EnvoyFilters. Rejects: patches over a limit.
pub(crate) fn derive_limited_filters<'s>(
    filters: &Collection<'s, ObjectKey, EnvoyFilter>,
    options: &GraphOptions,
) -> LimitedFilters<'s> {
    let limits = options.patch_limits;
    let costs: Index<'s, Text, ObjectKey, FilterCosts> =
        filters.index("envoy_filters/costs", |key, filter| [(key.namespace.clone(), FilterCosts::of(filter))]);
    let excess = costs.group("envoy_filters/excess", move |_, rows| {
        let mut rows: Vec<(&ObjectKey, &FilterCosts)> = rows.iter().map(|(key, costs)| (&**key, &**costs)).collect();
        rows.sort_by(|a, b| (a.1.created, &a.0.name, a.0).cmp(&(b.1.created, &b.0.name, b.0)));
        let excess = excess(&rows, limits);
        (!excess.is_empty()).then_some(excess)
    });
    let within = filters.derive("envoy_filters/within-limits", |deps| {
        let excess = deps.on(&excess);
        move |cx, key, filter| {
            let mut filter = filter.clone();
            if let Some(excess) = cx.get(&excess, &key.namespace) {
                for (n, patch) in filter.patches.iter_mut().enumerate() {
                    if excess.contains_key(&(key.clone(), n)) {
                        *patch = None;
                    }
                }
            }
            Some(filter)
        }
    });
    let rejects = excess.flat_map("envoy_filters/rejects", move |namespace, excess| {
        let mut rejects: BTreeMap<RejectKey, Vec<Reject>> = BTreeMap::new();
        for ((object, n), exceeded) in excess {
            let reject = Reject {
                kind: Kind::EnvoyFilter,
                object: object.clone(),
                field_path: format!("spec.configPatches[{n}]").into(),
                reason: reason(*exceeded, namespace, limits),
                severity: Severity::Error,
                cause: RejectCause::Other,
            };
            rejects.entry(RejectKey { kind: Kind::EnvoyFilter, object: object.clone() }).or_default().push(reject);
        }
        rejects
    });
    LimitedFilters { filters: within, rejects }
}

impl FilterCosts {
    fn of(filter: &EnvoyFilter) -> Self {
        let cost = |patch: &EnvoyPatch| PatchCost { bytes: patch.value.0.len(), is_repeated: is_repeated(patch) };
        Self { created: filter.created, patches: filter.patches.iter().map(|patch| patch.as_ref().map(cost)).collect() }
    }
}

/// The patches over a limit. A patch over a limit does not count towards any.
fn excess(rows: &[(&ObjectKey, &FilterCosts)], limits: PatchLimits) -> Excess {
    let mut excess = Excess::new();
    let (mut patches, mut bytes, mut repeated) = (0_usize, 0_usize, 0_usize);
    for (key, costs) in rows {
        for (n, cost) in costs.patches.iter().enumerate() {
            let Some(cost) = cost else { continue };
            let repeated_bytes = if cost.is_repeated { cost.bytes } else { 0 };
            let exceeded = if patches >= limits.max_patches {
                Some(ExceededLimit::Patches)
            } else if bytes.saturating_add(cost.bytes) > limits.max_bytes {
                Some(ExceededLimit::Bytes)
            } else if repeated.saturating_add(repeated_bytes) > limits.max_repeated_bytes {
                Some(ExceededLimit::RepeatedBytes)
            } else {
                None
            };
            match exceeded {
                Some(exceeded) => drop(excess.insert(((*key).clone(), n), exceeded)),
                None => {
                    patches += 1;
                    bytes += cost.bytes;
                    repeated += repeated_bytes;
                }
            }
        }
    }
    excess
}

/// Whether a patch copies its value into every resource, or part of one, that it does not name.
fn is_repeated(patch: &EnvoyPatch) -> bool {
    let adds_resource = patch.operation == PatchOperation::Add;
    let names_table = |table: &RouteTableMatch| !table.name.is_empty() || !table.gateway.is_empty() || table.port != 0;
    let names_object = match &patch.object {
        ObjectMatch::Any => false,
        ObjectMatch::Cluster(cluster) => !cluster.name.is_empty() || !cluster.service.is_empty(),
        ObjectMatch::Listener(listener) => !listener.name.is_empty() || listener.port != 0,
        ObjectMatch::RouteTable(table) => match patch.apply_to {
            ApplyTo::RouteConfiguration => names_table(table),
            ApplyTo::VirtualHost if adds_resource => names_table(table),
            _ => table.virtual_host.as_ref().is_some_and(|host| !host.name.is_empty() || !host.domain.is_empty()),
        },
    };
    match patch.apply_to {
        ApplyTo::ExtensionConfig => false,
        ApplyTo::Listener | ApplyTo::Cluster if adds_resource => false,
        _ => !names_object,
    }
}

fn reason(exceeded: ExceededLimit, namespace: &Text, limits: PatchLimits) -> Text {
    let PatchLimits { max_patches, max_bytes, max_repeated_bytes } = limits;
    let limit = match exceeded {
        ExceededLimit::Patches => format!("{max_patches} patches"),
        ExceededLimit::Bytes => format!("{max_bytes} bytes of values"),
        ExceededLimit::RepeatedBytes => {
            format!("{max_repeated_bytes} bytes of values of patches that name no cluster, listener or virtual host")
        }
    };
    format!(
        "the patch does not apply: EnvoyFilters of namespace `{namespace}` may have {limit}, and those of older objects \
         come first; the other patches apply"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sluice_model::{ClusterMatch, Labels, ListenerMatch, PatchContext, PatchValue, VersionMatch, VirtualHostMatch};

    use super::*;

    fn patch(apply_to: ApplyTo, operation: PatchOperation, object: ObjectMatch) -> EnvoyPatch {
        EnvoyPatch {
            apply_to,
            context: PatchContext::Any,
            version: VersionMatch::Any,
            metadata: Labels::new(),
            object,
            operation,
            value: PatchValue(Bytes::from_static(&[0; 10])),
        }
    }

    #[test]
    fn values_are_repeated_unless_the_patch_names_a_resource() {
        use ApplyTo::{Cluster, ExtensionConfig, HttpFilter, HttpRoute, RouteConfiguration, VirtualHost};
        use PatchOperation::{Add, InsertFirst, Merge};
        let cluster = |service: &str| {
            ObjectMatch::Cluster(ClusterMatch { service: service.into(), port: 80, ..ClusterMatch::default() })
        };
        let table = |name: &str, domain: &str| {
            ObjectMatch::RouteTable(RouteTableMatch {
                name: name.into(),
                virtual_host: Some(VirtualHostMatch { domain: domain.into(), ..VirtualHostMatch::default() }),
                ..RouteTableMatch::default()
            })
        };
        let listener = |port| ObjectMatch::Listener(ListenerMatch { port, ..ListenerMatch::default() });
        for (apply_to, operation, object, repeated) in [
            (Cluster, Merge, ObjectMatch::Any, true),
            (Cluster, Merge, cluster(""), true),
            (Cluster, Merge, cluster("a.b"), false),
            (Cluster, Add, ObjectMatch::Any, false),
            (HttpFilter, InsertFirst, listener(0), true),
            (HttpFilter, InsertFirst, listener(80), false),
            (RouteConfiguration, Merge, table("80", ""), false),
            (VirtualHost, Merge, table("80", ""), true),
            (VirtualHost, Add, table("80", ""), false),
            (HttpRoute, Merge, table("80", "a.b"), false),
            (ExtensionConfig, Add, ObjectMatch::Any, false),
        ] {
            let patch = patch(apply_to, operation, object);
            assert_eq!(is_repeated(&patch), repeated, "{patch:?}");
        }
    }

    #[test]
    fn patches_over_a_limit_do_not_count() {
        let cost = |bytes, is_repeated| Some(PatchCost { bytes, is_repeated });
        let costs = |created: i64, patches| FilterCosts { created, patches };
        let (a, b) = (ObjectKey::new("c", "ns", "a"), ObjectKey::new("c", "ns", "b"));
        let first = costs(1, vec![cost(60, false), None, cost(50, false), cost(40, true)]);
        let second = costs(2, vec![cost(10, true), cost(0, false)]);
        let limits = PatchLimits { max_patches: 3, max_bytes: 105, max_repeated_bytes: 45 };
        let found = excess(&[(&a, &first), (&b, &second)], limits);
        let expected = [((a, 2), ExceededLimit::Bytes), ((b.clone(), 0), ExceededLimit::Bytes)];
        assert_eq!(found, expected.into());
        let found = excess(&[(&b, &second)], PatchLimits { max_patches: 1, max_repeated_bytes: 9, ..limits });
        assert_eq!(found, [((b, 0), ExceededLimit::RepeatedBytes)].into());
    }
}
