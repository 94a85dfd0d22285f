//! Limits on what the EnvoyFilters of one namespace may cost (T06).
//!
//! The limits count patches, bytes of their values, and the parts of the configuration that they may match. They count no
//! time: which patches apply is a function of the objects. Patches over a limit are left out; the others of the same object
//! apply.

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_engine::{Collection, Index};
use sluice_model::{EnvoyFilter, EnvoyPatch, Kind, ObjectKey, Reject, RejectCause, Severity, Text, Timestamp};

use super::patched_parts::{PartCounts, PartInputs, PartLookup, PatchedParts, derive_part_sums, is_repeated};
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
    /// The parts that it may match.
    parts: PatchedParts,
}

/// A limit that a patch exceeds.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
enum ExceededLimit {
    Patches,
    Bytes,
    RepeatedBytes,
    /// With the number of parts that the patch may match.
    CopiedBytes(usize),
    PatchedParts(usize),
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
/// Key: `ObjectKey`. From: `envoy_filters`, `patched_parts`.
/// Changes when: the object does, or patches of its namespace come over a limit.
/// Size: EnvoyFilters. Rejects: patches over a limit.
pub(crate) fn derive_limited_filters<'s>(
    filters: &Collection<'s, ObjectKey, EnvoyFilter>,
    parts: &PartInputs<'_, 's>,
    options: &GraphOptions,
) -> LimitedFilters<'s> {
    let (limits, ambient) = (options.patch_limits, options.ambient.is_some());
    let costs: Index<'s, Text, ObjectKey, FilterCosts> = filters
        .index("envoy_filters/costs", move |key, filter| [(key.namespace.clone(), FilterCosts::of(filter, ambient))]);
    let sums = derive_part_sums(parts);
    let excess = costs.distinct("envoy_filters/namespaces").derive("envoy_filters/excess", |deps| {
        let (costs, counts) = (deps.by(&costs), PartLookup::on(deps, &sums));
        move |cx, namespace, ()| {
            let mut rows = cx.by(&costs, namespace);
            rows.sort_by(|(a, left), (b, right)| (left.created, &a.name, a).cmp(&(right.created, &b.name, b)));
            let excess = excess(&rows, limits, counts.get(cx));
            (!excess.is_empty()).then_some(excess)
        }
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
    fn of(filter: &EnvoyFilter, ambient: bool) -> Self {
        let cost = |patch: &EnvoyPatch| PatchCost {
            bytes: patch.value.0.len(),
            is_repeated: is_repeated(patch),
            parts: PatchedParts::of(patch, &filter.attachment, ambient),
        };
        Self { created: filter.created, patches: filter.patches.iter().map(|patch| patch.as_ref().map(cost)).collect() }
    }
}

/// The patches over a limit. A patch over a limit does not count towards any.
fn excess<C: AsRef<FilterCosts>>(rows: &[(ObjectKey, C)], limits: PatchLimits, counts: PartCounts) -> Excess {
    let mut excess = Excess::new();
    let (mut patches, mut bytes, mut repeated) = (0_usize, 0_usize, 0_usize);
    let (mut copied, mut patched) = (0_usize, 0_usize);
    for (key, costs) in rows {
        for (n, cost) in costs.as_ref().patches.iter().enumerate() {
            let Some(cost) = cost else { continue };
            let repeated_bytes = if cost.is_repeated { cost.bytes } else { 0 };
            let parts = cost.parts.count(counts);
            let copied_bytes = cost.bytes.saturating_mul(parts);
            let exceeded = if patches >= limits.max_patches {
                Some(ExceededLimit::Patches)
            } else if bytes.saturating_add(cost.bytes) > limits.max_bytes {
                Some(ExceededLimit::Bytes)
            } else if repeated.saturating_add(repeated_bytes) > limits.max_repeated_bytes {
                Some(ExceededLimit::RepeatedBytes)
            } else if copied.saturating_add(copied_bytes) > limits.max_copied_bytes {
                Some(ExceededLimit::CopiedBytes(parts))
            } else if patched.saturating_add(parts) > limits.max_patched_parts {
                Some(ExceededLimit::PatchedParts(parts))
            } else {
                None
            };
            match exceeded {
                Some(exceeded) => drop(excess.insert((key.clone(), n), exceeded)),
                None => {
                    patches += 1;
                    bytes += cost.bytes;
                    repeated += repeated_bytes;
                    copied += copied_bytes;
                    patched += parts;
                }
            }
        }
    }
    excess
}

fn reason(exceeded: ExceededLimit, namespace: &Text, limits: PatchLimits) -> Text {
    let PatchLimits { max_patches, max_bytes, max_repeated_bytes, max_copied_bytes, max_patched_parts } = limits;
    let limit = match exceeded {
        ExceededLimit::Patches => format!("{max_patches} patches"),
        ExceededLimit::Bytes => format!("{max_bytes} bytes of values"),
        ExceededLimit::RepeatedBytes => {
            format!("{max_repeated_bytes} bytes of values of patches that name no cluster, listener or virtual host")
        }
        ExceededLimit::CopiedBytes(parts) => format!(
            "{max_copied_bytes} bytes of values times the clusters, listeners or routes that a patch may match, which are \
             about {parts} for this one"
        ),
        ExceededLimit::PatchedParts(parts) => format!(
            "{max_patched_parts} patches times the clusters, listeners or routes that a patch may match, which are about \
             {parts} for this one"
        ),
    };
    format!(
        "the patch does not apply: EnvoyFilters of namespace `{namespace}` may have {limit}, and those of older objects \
         come first; the other patches apply"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNLIMITED: PatchLimits = PatchLimits {
        max_patches: usize::MAX,
        max_bytes: usize::MAX,
        max_repeated_bytes: usize::MAX,
        max_copied_bytes: usize::MAX,
        max_patched_parts: usize::MAX,
    };

    fn cost(bytes: usize, is_repeated: bool) -> Option<PatchCost> {
        let parts = if is_repeated { PatchedParts::Clusters } else { PatchedParts::Named };
        Some(PatchCost { bytes, is_repeated, parts })
    }

    fn costs(created: i64, patches: Vec<Option<PatchCost>>) -> Box<FilterCosts> {
        Box::new(FilterCosts { created, patches })
    }

    fn keys() -> [ObjectKey; 2] {
        ["a", "b"].map(|name| ObjectKey::new("c", "ns", name))
    }

    #[test]
    fn patches_over_a_limit_do_not_count() {
        let [a, b] = keys();
        let first = costs(1, vec![cost(60, false), None, cost(50, false), cost(40, true)]);
        let second = costs(2, vec![cost(10, true), cost(0, false)]);
        let limits = PatchLimits { max_patches: 3, max_bytes: 105, max_repeated_bytes: 45, ..UNLIMITED };
        let counts = PartCounts::default();
        let found = excess(&[(a.clone(), first), (b.clone(), second.clone())], limits, counts);
        let expected = [((a, 2), ExceededLimit::Bytes), ((b.clone(), 0), ExceededLimit::Bytes)];
        assert_eq!(found, expected.into());
        let limits = PatchLimits { max_patches: 1, max_repeated_bytes: 9, ..limits };
        let found = excess(&[(b.clone(), second)], limits, counts);
        assert_eq!(found, [((b, 0), ExceededLimit::RepeatedBytes)].into());
    }

    #[test]
    fn values_count_for_each_part_that_they_may_be_copied_into() {
        let [a, b] = keys();
        let rows = [
            (a.clone(), costs(1, vec![cost(10, true), cost(1000, false), cost(21, true)])),
            (b.clone(), costs(2, vec![cost(20, true)])),
        ];
        let counts = PartCounts { clusters: 100, ..PartCounts::default() };
        let found = |limits: PatchLimits| excess(&rows, limits, counts);
        let bytes = PatchLimits { max_copied_bytes: 4000, ..UNLIMITED };
        assert_eq!(found(bytes), [((a.clone(), 2), ExceededLimit::CopiedBytes(100))].into());
        let parts = PatchLimits { max_patched_parts: 201, ..UNLIMITED };
        assert_eq!(found(parts), [((b, 0), ExceededLimit::PatchedParts(100))].into());
        assert_eq!(excess(&rows, bytes, PartCounts::default()), Excess::new(), "a small mesh has few parts");
    }

    #[test]
    fn dozens_of_patches_of_some_kibibytes_are_within_the_limits_of_a_large_mesh() {
        let [a, _] = keys();
        let counts = PartCounts { http_listeners: 512, clusters: 20_480, routes: 28_672 };
        let lua = PatchCost { bytes: 4 << 10, is_repeated: true, parts: PatchedParts::HttpListeners };
        let route = PatchCost { bytes: 200, is_repeated: true, parts: PatchedParts::Routes };
        let cluster = PatchCost { parts: PatchedParts::Clusters, ..route };
        let patches = [lua, route, cluster].into_iter().flat_map(|cost| [Some(cost); 14]).collect();
        assert_eq!(excess(&[(a.clone(), costs(1, patches))], PatchLimits::default(), counts), Excess::new());
        let large = costs(1, vec![Some(PatchCost { bytes: 250 << 10, ..cluster })]);
        assert_eq!(
            excess(&[(a.clone(), large)], PatchLimits::default(), counts),
            [((a, 0), ExceededLimit::CopiedBytes(20_480))].into()
        );
    }
}
