//! Findings about policies, telemetry, extensions and EnvoyFilters with targets that no waypoint serves, or that agentgateways serve
//! (G07).

use serde::Serialize;
use sluice_engine::{Collection, Index};
use sluice_model::gateway_api::{GROUP, WAYPOINT_CLASS};
use sluice_model::{
    Attachment, Kind, NETWORKING_GROUP, ObjectKey, Reject, RejectCause, ServiceKey, ServiceSource, Severity, TargetRef,
    Text,
};

use super::ambient::Ambient;
use crate::inputs::{ObjectCollections, RejectKey};

/// The object that declares a service: its kind, namespace and name.
type Declaration = (ServiceSource, Text, Text);

/// A target that only waypoints serve, or a Gateway, which agentgateways may serve.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
enum LimitedTarget {
    Service(ServiceSource, Text),
    Class(Text),
    Gateway(Text),
}

impl LimitedTarget {
    fn of(target: &TargetRef) -> Option<Self> {
        if target.is_kind("", "Service") {
            Some(Self::Service(ServiceSource::Kubernetes, target.name.clone()))
        } else if target.is_kind(NETWORKING_GROUP, "ServiceEntry") {
            Some(Self::Service(ServiceSource::ServiceEntry, target.name.clone()))
        } else if target.is_kind(GROUP, "Gateway") {
            Some(Self::Gateway(target.name.clone()))
        } else {
            target.is_kind(GROUP, "GatewayClass").then(|| Self::Class(target.name.clone()))
        }
    }

    /// The targets of an object; Gateways only if agentgateways are served.
    fn all(attachment: &Attachment, agentgateways: bool) -> Option<Vec<Self>> {
        let targets = attachment.targets.iter().filter_map(Self::of);
        let targets: Vec<Self> =
            targets.filter(|target| agentgateways || !matches!(target, Self::Gateway(_))).collect();
        (!targets.is_empty()).then_some(targets)
    }
}

/// Findings about objects with targets that no waypoint serves, or that agentgateways serve.
/// Key: `RejectKey`. From: `authorization_policies`, `request_authentications`, `telemetries`, `traffic_extensions`,
/// `wasm_plugins`, `envoy_filters`, `ambient_services`, `root_namespace`, `agentgateway/accounts`.
/// Changes when: such an object does, a service that it names begins or stops to use a waypoint, or a Gateway that it names gets
/// another class.
/// Size: objects with such targets. Rejects: these.
pub(crate) fn derive_unenforced_policies<'s>(
    objects: &ObjectCollections<'s>,
    root_namespace: &Collection<'s, (), Text>,
    ambient: Option<&Ambient<'s>>,
    agentgateways: Option<&Collection<'s, ObjectKey, Text>>,
) -> Vec<Collection<'s, RejectKey, Vec<Reject>>> {
    let served: Option<Index<'s, Declaration, ServiceKey, WaypointOfService>> = ambient.map(|ambient| {
        ambient.services.index("unenforced_policies/services", |_, service| {
            let object = &service.object;
            let waypoints = &service.waypoints;
            let waypoint = WaypointOfService { exists: waypoints.has_any(), first: waypoints.waypoint.clone() };
            [((service.source, object.namespace.clone(), object.name.clone()), waypoint)]
        })
    });
    let with_gateways = agentgateways.is_some();
    let authorization =
        objects.authorization_policies.filter_map("unenforced_policies/authorization", move |_, policy| {
            LimitedTarget::all(&policy.attachment, with_gateways)
        });
    let requests = objects.request_authentications.filter_map("unenforced_policies/requests", move |_, policy| {
        LimitedTarget::all(&policy.attachment, with_gateways)
    });
    let telemetry = objects.telemetries.filter_map("unenforced_policies/telemetry", move |_, telemetry| {
        LimitedTarget::all(&telemetry.attachment, with_gateways)
    });
    let extensions = objects.traffic_extensions.filter_map("unenforced_policies/extensions", move |_, extension| {
        LimitedTarget::all(&extension.attachment, with_gateways)
    });
    let plugins = objects.wasm_plugins.filter_map("unenforced_policies/plugins", move |_, plugin| {
        LimitedTarget::all(&plugin.attachment, with_gateways)
    });
    let filters = objects.envoy_filters.filter_map("unenforced_policies/filters", move |_, filter| {
        LimitedTarget::all(&filter.attachment, with_gateways)
    });
    let all = [
        (Kind::AuthorizationPolicy, authorization),
        (Kind::RequestAuthentication, requests),
        (Kind::Telemetry, telemetry),
        (Kind::TrafficExtension, extensions),
        (Kind::WasmPlugin, plugins),
        (Kind::EnvoyFilter, filters),
    ];
    let findings = all.map(|(kind, policies)| {
        policies.derive_many(&format!("unenforced_policies/{kind}"), |deps| {
            let (root, served) = (deps.on(root_namespace), served.as_ref().map(|served| deps.by(served)));
            let agentgateways = agentgateways.map(|gateways| deps.on(gateways));
            move |cx, policy: &ObjectKey, targets: &Vec<LimitedTarget>| {
                let why = |target: &LimitedTarget| match (target, &served) {
                    (LimitedTarget::Service(..), _) if kind == Kind::EnvoyFilter => {
                        Some("an EnvoyFilter cannot have a Service or ServiceEntry as its target".to_owned())
                    }
                    (LimitedTarget::Gateway(name), _) => {
                        let gateway = ObjectKey { name: name.clone(), ..policy.clone() };
                        agentgateways.as_ref().and_then(|gateways| cx.get(gateways, &gateway))?;
                        Some(format!("agentgateways serve Gateway `{name}`"))
                    }
                    (_, None) => Some("ambient mode is off (PILOT_ENABLE_AMBIENT)".to_owned()),
                    (LimitedTarget::Class(name), _) if *name != WAYPOINT_CLASS => Some(format!(
                        "GatewayClass `{name}` is not `{WAYPOINT_CLASS}`, the only class that can be a target"
                    )),
                    (LimitedTarget::Class(_), _) => {
                        let root = cx.get(&root, &())?;
                        let here = policy.namespace == *root;
                        (!here).then(|| format!("a GatewayClass is a target only in the root namespace, `{root}`"))
                    }
                    (LimitedTarget::Service(source, name), Some(served)) => {
                        let found = cx.by(served, &(*source, policy.namespace.clone(), name.clone()));
                        let is_served = found.iter().any(|(_, waypoint)| waypoint.exists);
                        let kind = match source {
                            ServiceSource::Kubernetes => "Service",
                            ServiceSource::ServiceEntry => "ServiceEntry",
                        };
                        if !is_served {
                            return Some(match found.is_empty() {
                                true => format!("there is no {kind} `{name}` in its namespace"),
                                false => format!("{kind} `{name}` uses no waypoint"),
                            });
                        }
                        let gateways = agentgateways.as_ref()?;
                        let mut waypoints = found.iter().filter_map(|(_, waypoint)| waypoint.first.as_ref());
                        let of_agentgateways = waypoints.find(|waypoint| cx.get(gateways, waypoint).is_some())?;
                        Some(format!(
                            "agentgateways serve Gateway `{}`, the waypoint of {kind} `{name}`",
                            of_agentgateways.name
                        ))
                    }
                };
                let reject = |reason: String| Reject {
                    kind,
                    object: policy.clone(),
                    field_path: "spec.targetRefs".into(),
                    reason: format!("{reason}: {}", consequence(kind)).into(),
                    severity: Severity::Warning,
                    cause: RejectCause::Other,
                };
                let rejects: Vec<Reject> = targets.iter().filter_map(why).map(reject).collect();
                if rejects.is_empty() {
                    return Vec::new();
                }
                vec![(RejectKey { kind, object: policy.clone() }, rejects)]
            }
        })
    });
    findings.into()
}

/// Whether a service has a waypoint that is ready, and the first one.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct WaypointOfService {
    exists: bool,
    first: Option<ObjectKey>,
}

/// What a finding means for an object of the kind.
fn consequence(kind: Kind) -> &'static str {
    match kind {
        Kind::AuthorizationPolicy | Kind::RequestAuthentication => "no proxy enforces this policy for the target",
        _ => "no proxy applies this object for the target",
    }
}
