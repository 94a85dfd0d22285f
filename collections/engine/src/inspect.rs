//! Inspection of a running engine: the graph, dumps, explanations, recent epochs.

use crossbeam_channel::bounded;
use serde_json::Value as Json;

use crate::command::{DumpChunk, EngineCommand};
use crate::dump::{CollectionInfo, Dump};
use crate::engine::Engine;
use crate::explanation::{EpochSummary, Explanation, HistoryQuery};
use crate::input_snapshot::InputsSnapshot;
use crate::node::NodeId;
use crate::output::Published;
use crate::value::{Erased, Key, Value};

/// Chunks of a dump that may be in flight, so that neither side waits for the other at each chunk.
const DUMP_CHUNKS_IN_FLIGHT: usize = 4;

/// Epochs that [`Engine::recent_epochs`] lists.
const RECENT_EPOCHS: usize = 256;

impl Engine {
    /// Every collection and index, parents before children.
    #[must_use]
    pub fn graph(&self) -> &[CollectionInfo] {
        self.infos()
    }

    /// All records of the collection or index with that name, at one epoch. `None` when no collection has the name or
    /// the engine has stopped. The engine keeps running: frozen or published rows are read on this thread, others in
    /// slices between epochs.
    #[must_use]
    pub fn dump(&self, name: &str) -> Option<Dump> {
        let info = self.infos().iter().find(|info| info.name == name)?.clone();
        if let Some(slot) = info.slot {
            let snapshot = self.snapshot();
            let rows = snapshot.map(slot)?.iter().map(|(key, record)| (key.0.clone(), record.value.clone())).collect();
            return Some(Dump { epoch: snapshot.epoch(), synced: snapshot.node_synced(info.node), info, rows });
        }
        let (reply, chunks) = bounded(DUMP_CHUNKS_IN_FLIGHT);
        self.send(EngineCommand::Dump(info.node, reply));
        let mut rows = Vec::new();
        let epoch = loop {
            match chunks.recv().ok()? {
                DumpChunk::Rows(mut more) => rows.append(&mut more),
                DumpChunk::End(epoch) => break epoch,
            }
        };
        rows.sort_unstable_by(|a, b| a.0.by_content(&b.0).then_with(|| a.1.by_content(&b.1)));
        if !info.is_index {
            // If a key has several values, the smallest wins, as in stores and snapshots.
            rows.dedup_by(|later, first| later.0 == first.0);
        }
        Some(Dump { epoch, synced: self.snapshot().node_synced(info.node), info, rows })
    }

    /// Why the record of `key` has its value, or why `key` is absent. `None` when the engine has stopped.
    #[must_use]
    pub fn explain<K: Key, V: Value>(&self, of: &Published<K, V>, key: &K) -> Option<Explanation> {
        self.explain_erased(of.node, Erased::new(key.clone()))
    }

    /// As [`Self::explain`], for any collection or index by name. `None` when no collection has the name.
    #[must_use]
    pub fn explain_key<K: Key>(&self, collection: &str, key: &K) -> Option<Explanation> {
        let info = self.infos().iter().find(|info| info.name == collection)?;
        self.explain_erased(info.node, Erased::new(key.clone()))
    }

    /// As [`Self::explain`], for any collection or index by name and with the key as JSON, as in dumps. `None` when
    /// there is no such collection or key.
    #[must_use]
    pub fn explain_json(&self, collection: &str, key: &Json) -> Option<Explanation> {
        let dump = self.dump(collection)?;
        let (key, _) = dump.rows.iter().find(|(known, _)| known.json() == *key)?;
        self.explain_erased(dump.info.node, key.clone())
    }

    fn explain_erased(&self, node: NodeId, key: Erased) -> Option<Explanation> {
        let (reply, answer) = bounded(1);
        self.send(EngineCommand::Explain(node, key, reply));
        answer.recv().ok()
    }

    /// All records of all inputs, once everything that this thread wrote before is committed. The rows are shared, so that
    /// nothing is copied on the dataflow thread. `None` when the engine has stopped.
    #[must_use]
    pub fn inputs(&self) -> Option<InputsSnapshot> {
        let (reply, answer) = bounded(1);
        self.send(EngineCommand::Inputs(reply));
        answer.recv().ok()
    }

    /// Epochs of the history, oldest first.
    #[must_use]
    pub fn history(&self, query: HistoryQuery) -> Vec<EpochSummary> {
        let (reply, answer) = bounded(1);
        self.send(EngineCommand::History(query, reply));
        answer.recv().unwrap_or_default()
    }

    /// The 256 most recent epochs, oldest first.
    #[must_use]
    pub fn recent_epochs(&self) -> Vec<EpochSummary> {
        self.history(HistoryQuery::recent(RECENT_EPOCHS))
    }
}
