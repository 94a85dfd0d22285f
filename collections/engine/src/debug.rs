//! All collections with their records and what made them, in the form of krt (O10, K15).
//!
//! `[{uid, name, state {outputs, inputCollection, inputs, synced}}]`. `inputs` has the keys of `inputCollection`, with the keys
//! that each of them made (`outputs`) and the other collections that were read for it (`dependencies`). Beyond krt's form,
//! `reads` has the keys that were read of these collections; `null` is all of them.
//!
//! The keys of one collection at a time are held. Values, and what was read, are looked up while the output is written.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::ser::{Error, SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::derivations::{Derivation, Derivations, KeysRead};
use crate::dump::{CollectionInfo, Dump};
use crate::engine::{Engine, WeakEngine};

/// The engines of a program, for a debug page that shows all their collections. A clone is another handle.
///
/// It does not keep an engine alive: when the last handle of an engine is dropped, its collections are not listed any more.
#[derive(Clone, Default)]
pub struct DebugHandler {
    engines: Arc<Mutex<Vec<WeakEngine>>>,
}

impl DebugHandler {
    /// Adds an engine. An engine that was added before is not listed twice.
    pub fn add(&self, engine: &Engine) {
        let added = engine.downgrade();
        let mut engines = self.lock();
        engines.retain(|known| known.is_running() && !known.is_same(&added));
        engines.push(added);
    }

    /// The engines that run, in the order in which they were added.
    #[must_use]
    pub fn engines(&self) -> Vec<Engine> {
        let mut engines = self.lock();
        engines.retain(WeakEngine::is_running);
        engines.iter().filter_map(WeakEngine::upgrade).collect()
    }

    /// All their collections, to be serialised.
    #[must_use]
    pub fn dump(&self) -> DebugDump {
        DebugDump { engines: self.engines(), only: None }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<WeakEngine>> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for DebugHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DebugHandler")
    }
}

/// All collections, or one of them. It is serialised piece by piece: nothing is held but the keys of one collection.
#[derive(Clone, Debug)]
pub struct DebugDump {
    engines: Vec<Engine>,
    only: Option<String>,
}

impl DebugDump {
    /// All collections of an engine.
    #[must_use]
    pub fn of(engine: Engine) -> Self {
        Self { engines: vec![engine], only: None }
    }

    /// Limits it to the collections with this name.
    #[must_use]
    pub fn only(self, name: &str) -> Self {
        Self { only: Some(name.to_owned()), ..self }
    }
}

impl Serialize for DebugDump {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_wanted = |info: &CollectionInfo| self.only.as_ref().is_none_or(|only| *only == info.name);
        let mut rows = serializer.serialize_seq(None)?;
        let all = self.engines.iter().flat_map(|engine| engine.graph().iter().map(move |info| (engine, info)));
        for (uid, (engine, info)) in all.enumerate().filter(|(_, (_, info))| is_wanted(info)) {
            let stopped = || S::Error::custom("the engine has stopped");
            let dump = engine.dump(&info.name).ok_or_else(stopped)?;
            let derivations = engine.derivations(&dump).ok_or_else(stopped)?;
            let state = CollectionState {
                input_collection: info.parents.first(),
                inputs: (!derivations.is_empty()).then(|| CollectionInputs(RefCell::new(derivations))),
                outputs: (!dump.is_empty()).then_some(CollectionOutputs(&dump)),
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
    #[serde(skip_serializing_if = "Option::is_none")]
    input_collection: Option<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inputs: Option<CollectionInputs<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outputs: Option<CollectionOutputs<'a>>,
    synced: bool,
}

/// The records of a collection by key; of an index, the rows of each key.
struct CollectionOutputs<'a>(&'a Dump);

impl Serialize for CollectionOutputs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut outputs = serializer.serialize_map(None)?;
        let mut records = self.0.records().peekable();
        let is_index = self.0.info().kind == "index";
        while let Some((key, value)) = records.next() {
            let text = key_text(&key);
            match is_index {
                false => outputs.serialize_entry(&text, &value)?,
                true => {
                    let objects = RowsOfKey { key, first: value, more: RefCell::new(&mut records) };
                    outputs.serialize_entry(&text, &IndexRows { key: &text, objects })?;
                }
            }
        }
        outputs.end()
    }
}

/// The rows of an index key, as krt shows them.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct IndexRows<'a, T: Serialize> {
    key: &'a str,
    objects: T,
}

/// The rows that follow each other under an index key. They are read while they are written.
struct RowsOfKey<'a, I: Iterator<Item = (Value, Value)>> {
    key: Value,
    first: Value,
    more: RefCell<&'a mut Peekable<I>>,
}

impl<I: Iterator<Item = (Value, Value)>> Serialize for RowsOfKey<'_, I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = serializer.serialize_seq(None)?;
        rows.serialize_element(&self.first)?;
        let mut more = self.more.borrow_mut();
        while let Some((_, row)) = more.next_if(|(key, _)| *key == self.key) {
            rows.serialize_element(&row)?;
        }
        rows.end()
    }
}

/// What each record of the first parent made. It is read while it is written, once.
struct CollectionInputs<'a>(RefCell<Derivations<'a>>);

impl Serialize for CollectionInputs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut inputs = serializer.serialize_map(None)?;
        for derivation in &mut *self.0.borrow_mut() {
            inputs.serialize_entry(&key_text(&derivation.maker), &InputRow::of(&derivation))?;
        }
        inputs.end()
    }
}

#[derive(Serialize)]
struct InputRow<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dependencies: Vec<&'a str>,
    outputs: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    reads: BTreeMap<&'a str, Option<Vec<String>>>,
}

impl<'a> InputRow<'a> {
    fn of(derivation: &'a Derivation) -> Self {
        let texts = |keys: &[Value]| keys.iter().map(key_text).collect::<Vec<_>>();
        let keys = |read: &KeysRead| match read {
            KeysRead::Some(keys) => Some(texts(keys)),
            KeysRead::All => None,
        };
        Self {
            dependencies: derivation.reads.iter().map(|(name, _)| name.as_str()).collect(),
            outputs: texts(&derivation.outputs),
            reads: derivation.reads.iter().map(|(name, read)| (name.as_str(), keys(read))).collect(),
        }
    }
}

/// A key as text: a string itself, any other value as JSON.
fn key_text(key: &Value) -> String {
    key.as_str().map_or_else(|| key.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::options::EngineOptions;

    fn pages() -> (Value, Value) {
        let (engine, (pods, ports)) = Engine::start(EngineOptions::default(), |b| {
            b.dataflow("main", |g| {
                let (pods_in, pods) = g.input::<String, String>("pods");
                let (ports_in, ports) = g.input::<u8, u16>("ports");
                let by_service = pods.index("pods/by-service", |_, service| [(service.clone(), ())]);
                by_service.group("sizes", |_, rows| Some(rows.len()));
                pods.derive("addresses", |d| {
                    let ports = d.on(&ports);
                    move |cx, _, _| cx.get(&ports, &1).map(|port| *port)
                });
                (pods_in, ports_in)
            })
        });
        engine.transaction(|tx| {
            tx.set(&ports, 1, 80);
            tx.set(&pods, "a".to_owned(), "web".to_owned());
            tx.set(&pods, "b".to_owned(), "web".to_owned());
        });
        let page = |only: Option<&str>| {
            let dump = DebugDump { engines: vec![engine.clone()], only: only.map(str::to_owned) };
            serde_json::to_value(dump).expect("JSON")
        };
        (page(None), page(Some("addresses")))
    }

    #[test]
    fn records_have_the_keys_of_what_made_them() {
        let (all, one) = pages();
        let state = |name: &str| {
            let rows = all.as_array().expect("a list");
            rows.iter().find(|row| row["name"] == name).map(|row| row["state"].clone()).expect("a collection")
        };
        assert_eq!(state("pods"), json!({"outputs": {"a": "web", "b": "web"}, "synced": false}));
        let made = json!({"dependencies": ["ports"], "outputs": ["a"], "reads": {"ports": ["1"]}});
        assert_eq!(
            (&state("addresses")["inputCollection"], &state("addresses")["inputs"]["a"]),
            (&json!("pods"), &made)
        );
        assert_eq!(state("pods/by-service")["inputs"], json!({"a": {"outputs": ["web"]}, "b": {"outputs": ["web"]}}));
        let rows = json!({"web": {"Key": "web", "Objects": [["a", null], ["b", null]]}});
        assert_eq!(state("pods/by-service")["outputs"], rows);
        let sizes = json!({"web": {"dependencies": ["pods"], "outputs": ["web"], "reads": {"pods": ["a", "b"]}}});
        assert_eq!(state("sizes")["inputs"], sizes);
        assert_eq!((one.as_array().map(Vec::len), &one[0]["state"]), (Some(1), &state("addresses")));
    }

    #[test]
    fn stopped_engines_are_not_listed() {
        let start = |name: &'static str| {
            let build = move |b: &mut crate::GraphBuilder| b.dataflow("main", |g| g.fixed(name, [(1, 2)]).publish());
            Engine::start(EngineOptions::default(), build).0
        };
        let handler = DebugHandler::default();
        let names = || {
            let page = serde_json::to_value(handler.dump()).expect("JSON");
            let rows = page.as_array().expect("a list").iter();
            rows.map(|row| (row["uid"].as_u64(), row["name"].as_str().map(str::to_owned))).collect::<Vec<_>>()
        };
        assert_eq!(names(), Vec::new());
        let (first, second) = (start("first"), start("second"));
        handler.add(&first);
        handler.add(&second);
        handler.add(&second.clone());
        let listed = |uid, name: &str| (Some(uid), Some(name.to_owned()));
        assert_eq!(names(), [listed(0, "first"), listed(1, "second")]);
        drop(first);
        assert_eq!(names(), [listed(0, "second")]);
        drop(second);
        assert_eq!((names(), handler.engines().len()), (Vec::new(), 0));
    }
}
