//! `/debug/krtz` (O10): all collections with their records, in the form of istiod.
//!
//! `[{uid, name, state {outputs, inputCollection, inputs, synced}}]`. The records of one collection at a time are held.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::Response;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use sluice_engine::{Dump, Engine};

use crate::AdminState;
use crate::answer::{self, Parameters};

/// The page.
pub(crate) async fn serve(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    answer::stream_json(Collections(state.engine.clone()), &parameters)
}

/// All collections.
struct Collections(Engine);

impl Serialize for Collections {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = serializer.serialize_seq(None)?;
        for (uid, info) in self.0.graph().iter().enumerate() {
            let Some(dump) = self.0.dump(&info.name) else { continue };
            let inputs = info.parents.iter().map(|parent| (parent.clone(), json!({}))).collect();
            let state = CollectionState {
                outputs: CollectionOutputs(&dump),
                input_collection: info.parents.first(),
                inputs,
                synced: dump.is_synced(),
            };
            rows.serialize_element(&CollectionRow { uid, name: &info.name, state })?;
        }
        rows.end()
    }
}

#[derive(Serialize)]
struct CollectionRow<'a> {
    uid: usize,
    name: &'a str,
    state: CollectionState<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CollectionState<'a> {
    outputs: CollectionOutputs<'a>,
    input_collection: Option<&'a String>,
    inputs: Map<String, Value>,
    synced: bool,
}

/// The records of a collection by key; of an index, one row of each key.
struct CollectionOutputs<'a>(&'a Dump);

impl Serialize for CollectionOutputs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut outputs = serializer.serialize_map(None)?;
        // Equal keys follow each other.
        let mut records = self.0.records().peekable();
        while let Some((key, value)) = records.next() {
            if records.peek().is_none_or(|(next, _)| *next != key) {
                outputs.serialize_entry(&key_text(&key), &value)?;
            }
        }
        outputs.end()
    }
}

/// A key as text: a string itself, any other value as JSON.
fn key_text(key: &Value) -> String {
    key.as_str().map_or_else(|| key.to_string(), str::to_owned)
}
