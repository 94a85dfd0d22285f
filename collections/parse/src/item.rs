//! The object that a parser of a kind reads.

use std::sync::LazyLock;

use serde_json::Value;
use sluice_model::{ObjectKey, ObjectMeta, StoredStatus, Text};

use crate::{Findings, metadata};

/// An object of a known kind that is being parsed.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// Cluster, namespace and name.
    pub key: &'a ObjectKey,
    /// The whole object.
    pub object: &'a Value,
    /// DNS domain of the cluster, such as `cluster.local`, which completes short hosts.
    pub domain: &'a str,
}

impl<'a> Item<'a> {
    /// The `spec`, an empty object if absent.
    #[must_use]
    pub fn spec(&self) -> &'a Value {
        self.object.get("spec").unwrap_or(&EMPTY)
    }

    /// The metadata. Invalid metadata is a warning and counts as absent.
    #[must_use]
    pub fn meta(&self, findings: &Findings) -> ObjectMeta {
        metadata::parse(self.key, self.object, findings)
    }

    /// The conditions in the stored status as JSON text; empty if there are none.
    #[must_use]
    pub fn conditions(&self) -> Text {
        stored_conditions(self.object)
    }

    /// The stored status.
    #[must_use]
    pub fn status(&self) -> StoredStatus {
        StoredStatus {
            api_version: self.object.get("apiVersion").and_then(Value::as_str).unwrap_or_default().into(),
            generation: self.object["metadata"]["generation"].as_i64().unwrap_or_default(),
            json: self.object.get("status").map(|status| status.to_string().into()).unwrap_or_default(),
        }
    }
}

/// See [`Item::conditions`].
pub(crate) fn stored_conditions(object: &Value) -> Text {
    let conditions = &object["status"]["conditions"];
    if conditions.is_null() { Text::default() } else { conditions.to_string().into() }
}

static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::Object(serde_json::Map::new()));
