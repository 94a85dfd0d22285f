//! Validation of each Istio object, and of the mesh config and networks, by the rules of admission (IST0106, IST0130, IST0131,
//! IST0133).

use serde_json::Value;
use sluice_model::{MeshConfig, RejectCause, Severity};
use sluice_parse::yaml::{Limits, parse_value};
use sluice_parse::{Finding, Findings, ObjectError, merge_mesh_config, parse_mesh_networks, validate_object};

use crate::codes::{INEFFECTIVE_MATCH, MessageType, SCHEMA_VALIDATION_ERROR, SCHEMA_WARNING, UNREACHABLE_RULE};
use crate::resource::{
    AUTHORIZATION_POLICY, DESTINATION_RULE, ENVOY_FILTER, GATEWAY, PEER_AUTHENTICATION, PROXY_CONFIG,
    REQUEST_AUTHENTICATION, SERVICE_ENTRY, SIDECAR, TELEMETRY, TRAFFIC_EXTENSION, VIRTUAL_SERVICE, WASM_PLUGIN,
    WORKLOAD_ENTRY, WORKLOAD_GROUP,
};
use crate::value::{has, text};
use crate::{GroupKind, MeshObjects, MessageList};

/// A function for each kind, because each is an analyzer of its own.
macro_rules! kinds {
    ($($function:ident $kind:ident;)*) => {
        $(pub(crate) fn $function<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
            objects(mesh, $kind, report);
        })*
    };
}

kinds! {
    authorization_policies AUTHORIZATION_POLICY;
    destination_rules DESTINATION_RULE;
    envoy_filters ENVOY_FILTER;
    gateways GATEWAY;
    peer_authentications PEER_AUTHENTICATION;
    proxy_configs PROXY_CONFIG;
    request_authentications REQUEST_AUTHENTICATION;
    service_entries SERVICE_ENTRY;
    sidecars SIDECAR;
    telemetries TELEMETRY;
    traffic_extensions TRAFFIC_EXTENSION;
    virtual_services VIRTUAL_SERVICE;
    wasm_plugins WASM_PLUGIN;
    workload_entries WORKLOAD_ENTRY;
    workload_groups WORKLOAD_GROUP;
}

fn objects<'m>(mesh: &'m MeshObjects<'m>, kind: GroupKind<'static>, report: &mut MessageList<'m>) {
    for resource in mesh.all(kind) {
        match validate_object(&resource.value) {
            Ok(rejects) => {
                for reject in rejects {
                    let field = reject.field_path.as_str();
                    let message_type = message_type(reject.severity, reject.cause);
                    report.add(message_type, resource, field, format!("{field}: {}", reject.reason));
                }
            }
            // A version without rules.
            Err(ObjectError::UnknownKind { .. }) => {}
            Err(error) => report.add(&SCHEMA_VALIDATION_ERROR, resource, "", error.to_string()),
        }
    }
}

fn message_type(severity: Severity, cause: RejectCause) -> &'static MessageType {
    match (cause, severity) {
        (RejectCause::UnreachableRule, _) => &UNREACHABLE_RULE,
        (RejectCause::IneffectiveMatch, _) => &INEFFECTIVE_MATCH,
        (RejectCause::Other, Severity::Warning) => &SCHEMA_WARNING,
        (RejectCause::Other, Severity::Refused | Severity::Error) => &SCHEMA_VALIDATION_ERROR,
    }
}

/// The mesh config in its ConfigMap.
pub(crate) fn mesh_config<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    in_config_map(mesh, "mesh", report, |value, findings| {
        let _ = merge_mesh_config(MeshConfig::default(), value, "", findings);
    });
}

/// The networks of the mesh in the same ConfigMap.
pub(crate) fn mesh_networks<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    in_config_map(mesh, "meshNetworks", report, |value, findings| {
        let _ = parse_mesh_networks(value, "", findings);
    });
}

fn in_config_map<'m>(mesh: &'m MeshObjects<'m>, key: &str, report: &mut MessageList<'m>, read: fn(&Value, &Findings)) {
    let field = format!("data.{key}");
    let Some(map) = mesh.mesh_config_map().filter(|map| has(&map.value, &field)) else { return };
    match parse_value(text(&map.value, &field), &Limits::default()) {
        Ok(value) => {
            let findings = Findings::default();
            read(&value, &findings);
            for Finding { field_path, reason, severity, cause } in findings.into_vec() {
                report.add(message_type(severity, cause), map, field.as_str(), format!("{field_path}: {reason}"));
            }
        }
        Err(error) => report.add(&SCHEMA_VALIDATION_ERROR, map, field.as_str(), error.to_string()),
    }
}
