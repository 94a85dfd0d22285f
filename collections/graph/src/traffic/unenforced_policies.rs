//! Findings about policies, telemetry, extensions and EnvoyFilters with targets that no waypoint serves (G07).

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

/// A target that only waypoints serve.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
enum WaypointOnly {
    Service(ServiceSource, Text),
    Class(Text),
}

impl WaypointOnly {
    fn of(target: &TargetRef) -> Option<Self> {
        if target.is_kind("", "Service") {
            Some(Self::Service(ServiceSource::Kubernetes, target.name.clone()))
        } else if target.is_kind(NETWORKING_GROUP, "ServiceEntry") {
            Some(Self::Service(ServiceSource::ServiceEntry, target.name.clone()))
        } else {
            target.is_kind(GROUP, "GatewayClass").then(|| Self::Class(target.name.clone()))
        }
    }

    fn all(attachment: &Attachment) -> Option<Vec<Self>> {
        let targets: Vec<Self> = attachment.targets.iter().filter_map(Self::of).collect();
        (!targets.is_empty()).then_some(targets)
    }
}

/// Findings about objects with targets that no waypoint serves.
/// Key: `RejectKey`. From: `authorization_policies`, `request_authentications`, `telemetries`, `traffic_extensions`,
/// `wasm_plugins`, `envoy_filters`, `ambient_services`, `root_namespace`.
/// Changes when: such an object does, or a service that it names begins or stops to use a waypoint.
/// Size: objects with such targets. Rejects: these.
pub(crate) fn derive_unenforced_policies<'s>(
    objects: &ObjectCollections<'s>,
    root_namespace: &Collection<'s, (), Text>,
    ambient: Option<&Ambient<'s>>,
) -> Vec<Collection<'s, RejectKey, Vec<Reject>>> {
    let served: Option<Index<'s, Declaration, ServiceKey, bool>> = ambient.map(|ambient| {
        ambient.services.index("unenforced_policies/services", |_, service| {
            let object = &service.object;
            [((service.source, object.namespace.clone(), object.name.clone()), service.waypoints.has_any())]
        })
    });
    let authorization = objects
        .authorization_policies
        .filter_map("unenforced_policies/authorization", |_, policy| WaypointOnly::all(&policy.attachment));
    let requests = objects
        .request_authentications
        .filter_map("unenforced_policies/requests", |_, policy| WaypointOnly::all(&policy.attachment));
    let telemetry = objects
        .telemetries
        .filter_map("unenforced_policies/telemetry", |_, telemetry| WaypointOnly::all(&telemetry.attachment));
    let extensions = objects
        .traffic_extensions
        .filter_map("unenforced_policies/extensions", |_, extension| WaypointOnly::all(&extension.attachment));
    let plugins = objects
        .wasm_plugins
        .filter_map("unenforced_policies/plugins", |_, plugin| WaypointOnly::all(&plugin.attachment));
    let filters = objects
        .envoy_filters
        .filter_map("unenforced_policies/filters", |_, filter| WaypointOnly::all(&filter.attachment));
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
            move |cx, policy: &ObjectKey, targets: &Vec<WaypointOnly>| {
                let why = |target: &WaypointOnly| match (target, &served) {
                    (WaypointOnly::Service(..), _) if kind == Kind::EnvoyFilter => {
                        Some("an EnvoyFilter cannot have a Service or ServiceEntry as its target".to_owned())
                    }
                    (_, None) => Some("ambient mode is off (PILOT_ENABLE_AMBIENT)".to_owned()),
                    (WaypointOnly::Class(name), _) if *name != WAYPOINT_CLASS => {
                        Some(format!("GatewayClass `{name}` is not that of waypoints, `{WAYPOINT_CLASS}`"))
                    }
                    (WaypointOnly::Class(_), _) => {
                        let root = cx.get(&root, &())?;
                        let here = policy.namespace == *root;
                        (!here).then(|| format!("a GatewayClass is a target only in the root namespace, `{root}`"))
                    }
                    (WaypointOnly::Service(source, name), Some(served)) => {
                        let found = cx.by(served, &(*source, policy.namespace.clone(), name.clone()));
                        let is_served = found.iter().any(|(_, has_waypoint)| **has_waypoint);
                        let kind = match source {
                            ServiceSource::Kubernetes => "Service",
                            ServiceSource::ServiceEntry => "ServiceEntry",
                        };
                        (!is_served).then(|| match found.is_empty() {
                            true => format!("there is no {kind} `{name}` in its namespace"),
                            false => format!("{kind} `{name}` uses no waypoint"),
                        })
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

/// What a finding means for an object of the kind.
fn consequence(kind: Kind) -> &'static str {
    match kind {
        Kind::AuthorizationPolicy | Kind::RequestAuthentication => "no proxy enforces this policy for the target",
        _ => "no proxy applies this object for the target",
    }
}
