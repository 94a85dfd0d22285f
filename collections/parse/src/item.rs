//! The object that a parser of a kind reads.

use std::sync::LazyLock;

use serde_json::Value;
use sluice_model::{ObjectKey, ObjectMeta};

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
}

static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::Object(serde_json::Map::new()));
