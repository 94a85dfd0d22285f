//! Changes of inputs as data.

use serde_json::{Value, json};

use crate::seeds::Seed;

/// A change of an input, or of the engine.
#[derive(Clone, Debug, PartialEq)]
pub enum InputChange {
    /// Writes an object.
    Set(Seed),
    /// Deletes an object.
    Delete(Seed),
    /// A node connects, and subscribes to secrets or not.
    Connect(Value, bool),
    /// The proxy with this node id leaves.
    Disconnect(String),
    /// A host name of a gateway has these addresses; none if it is not resolved.
    Resolve(String, Vec<String>),
    /// Workloads trust these roots; none if they trust those of their own certificates.
    Trust(Vec<String>),
    /// After the other changes of the epoch, a copy of the engine takes its place.
    Copy,
}

impl InputChange {
    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Set(seed) => json!({ "cluster": seed.cluster.as_str(), "set": seed.rendered() }),
            Self::Delete(seed) => json!({ "cluster": seed.cluster.as_str(), "delete": seed.rendered() }),
            Self::Connect(node, reads_secrets) => json!({ "connect": node, "secrets": reads_secrets }),
            Self::Disconnect(id) => json!({ "disconnect": id }),
            Self::Resolve(name, addresses) => json!({ "resolve": name, "addresses": addresses }),
            Self::Trust(roots) => json!({ "trust": roots }),
            Self::Copy => json!({ "copy": true }),
        }
    }

    pub(super) fn from_value(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let texts = |name: &str| -> Vec<String> {
            let items = value.get(name).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(|item| item.as_str().map(ToOwned::to_owned)).collect()
        };
        let seed = |object: &Value| Seed::new(text("cluster").unwrap_or("Kubernetes").into(), object.clone());
        if let Some(object) = value.get("set") {
            return Some(Self::Set(seed(object)));
        }
        if let Some(object) = value.get("delete") {
            return Some(Self::Delete(seed(object)));
        }
        if let Some(node) = value.get("connect") {
            return Some(Self::Connect(node.clone(), value.get("secrets") == Some(&json!(true))));
        }
        if let Some(id) = text("disconnect") {
            return Some(Self::Disconnect(id.to_owned()));
        }
        if let Some(name) = text("resolve") {
            return Some(Self::Resolve(name.to_owned(), texts("addresses")));
        }
        if value.get("trust").is_some() {
            return Some(Self::Trust(texts("trust")));
        }
        value.get("copy").map(|_| Self::Copy)
    }
}
