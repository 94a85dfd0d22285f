//! ConfigMap `istio`: `MeshConfig` and `MeshNetworks` (C12, C17).

use serde_json::Value;
use sluice_model::{MeshConfig, MeshNetworks, MeshSettings, Object};

use crate::gateway_api;
use crate::mesh_config::merge_mesh_config;
use crate::mesh_networks::parse_mesh_networks;
use crate::secret::parse_config_map;
use crate::yaml::{Limits, parse_value};
use crate::{Findings, Item};

/// Parses a ConfigMap with the key `mesh` or `meshNetworks`, one with root certificates, or one with overlays of deployed
/// gateways; other ConfigMaps are ignored.
/// An invalid `MeshConfig` does not apply in any part: the last valid one stays in effect.
pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let key = |name: &str| item.object.get("data").and_then(|data| data.get(name)).and_then(Value::as_str);
    let (mesh, networks) = (key("mesh"), key("meshNetworks"));
    if mesh.is_none() && networks.is_none() {
        let roots = parse_config_map(item, findings).map(Object::Roots);
        return roots.or_else(|| gateway_api::parameters::parse(item, findings).map(Object::GatewayParameters));
    }
    let read = |name: &str, text: Option<&str>| {
        let text = text.filter(|text| !text.trim().is_empty())?;
        match parse_value(text, &Limits::default()) {
            Ok(Value::Null) => None,
            Ok(value) => Some(value),
            Err(error) => {
                findings.error(&format!("data.{name}"), error.to_string());
                None
            }
        }
    };
    let mesh = read("mesh", mesh);
    let given = mesh.as_ref().map(|value| value.to_string().into()).unwrap_or_default();
    let mesh = match mesh {
        Some(value) => merge_mesh_config(MeshConfig::default(), &value, "data.mesh", findings),
        None => MeshConfig::default(),
    };
    let networks = networks.map(|text| match read("meshNetworks", Some(text)) {
        Some(value) => parse_mesh_networks(&value, "data.meshNetworks", findings),
        None => MeshNetworks::default(),
    });
    (!findings.has_refusals()).then(|| Object::MeshSettings(Box::new(MeshSettings { mesh, given, networks })))
}
