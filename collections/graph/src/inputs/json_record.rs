//! Records of inputs in JSON, as recordings have them.

use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use sluice_engine::{Input, Key, Origin, Transaction, Value};

/// A record of an input, or its deletion.
#[derive(Clone, Debug)]
pub struct JsonRecord {
    /// Name of the input.
    pub collection: String,
    /// The key.
    pub key: Json,
    /// The value; `None` deletes the record.
    pub value: Option<Json>,
    /// Where it comes from.
    pub origin: Origin,
}

/// A record that an input does not have.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JsonRecordError {
    /// No input has the name: the record is of another version.
    #[error("there is no input {0}")]
    UnknownCollection(String),
    /// The key or the value has another form.
    #[error("{collection}: {key}: {part}: {error}")]
    Invalid {
        /// Name of the input.
        collection: String,
        /// The key as JSON.
        key: String,
        /// Path of the field, with `key` or `value` first.
        part: String,
        /// What is wrong.
        error: String,
    },
}

impl JsonRecord {
    /// Reads the record as one of an input, and writes it if there is a transaction.
    pub(super) fn write<K, V>(self, tx: Option<&mut Transaction>, input: &Input<K, V>) -> Result<(), JsonRecordError>
    where
        K: Key + DeserializeOwned,
        V: Value + DeserializeOwned,
    {
        let key = self.read::<K>("key", &self.key)?;
        let value = self.value.as_ref().map(|value| self.read::<V>("value", value)).transpose()?;
        match (tx, value) {
            (None, _) => {}
            (Some(tx), Some(value)) => tx.set_from(input, key, value, self.origin),
            (Some(tx), None) => tx.delete_from(input, key, self.origin),
        }
        Ok(())
    }

    fn read<T: DeserializeOwned>(&self, part: &str, json: &Json) -> Result<T, JsonRecordError> {
        serde_path_to_error::deserialize(json).map_err(|error| {
            let path = error.path().to_string();
            let part = if path == "." { part.to_owned() } else { format!("{part}.{path}") };
            let (collection, key) = (self.collection.clone(), self.key.to_string());
            JsonRecordError::Invalid { collection, key, part, error: error.into_inner().to_string() }
        })
    }
}
