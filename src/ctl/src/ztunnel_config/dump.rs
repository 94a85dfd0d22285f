//! A dump of a ztunnel. Lists are maps in older versions of ztunnel.

use serde_json::Value;

/// The parts of a dump.
pub(super) struct ZtunnelDump {
    pub(super) workloads: Vec<Value>,
    pub(super) services: Vec<Value>,
    pub(super) policies: Vec<Value>,
    pub(super) certificates: Vec<Value>,
    /// The workloads of the node with their connections.
    pub(super) states: Vec<Value>,
    /// All of it.
    pub(super) whole: Value,
}

impl ZtunnelDump {
    /// Reads a dump.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let whole: Value = serde_json::from_slice(text).map_err(|error| format!("is no JSON: {error}"))?;
        if !whole.is_object() || whole["workloads"].is_null() && whole["services"].is_null() {
            return Err("is no dump of ztunnel: fields workloads and services are missing".to_owned());
        }
        let part = |field: &str| match &whole[field] {
            Value::Array(elements) => elements.clone(),
            Value::Object(fields) => fields.iter().map(|(_, value)| value.clone()).collect(),
            _ => Vec::new(),
        };
        let states = if whole["workloadState"].is_null() { "workloadstate" } else { "workloadState" };
        Ok(Self {
            workloads: part("workloads"),
            services: part("services"),
            policies: part("policies"),
            certificates: part("certificates"),
            states: part(states),
            whole,
        })
    }

    /// The name of the service of a waypoint: `None` without one.
    pub(super) fn waypoint(&self, of: &Value) -> String {
        let Some(destination) = of["waypoint"]["destination"].as_str() else { return "None".to_owned() };
        let is_it = |service: &&Value| {
            let field = |name: &str| service[name].as_str().unwrap_or_default();
            format!("{}/{}", field("namespace"), field("hostname")) == destination
                || service["vips"].as_array().is_some_and(|vips| vips.iter().any(|vip| *vip == destination))
        };
        let name = self.services.iter().find(is_it).and_then(|service| service["name"].as_str());
        name.unwrap_or("NA").to_owned()
    }
}
