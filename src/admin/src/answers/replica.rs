//! A second engine of the same graph with only the inputs of one resource: it shows what the resource would be without one of
//! them.

use serde_json::Value;
use sluice_engine::{Engine, InputRecord};
use sluice_graph::{GraphOptions, Handles, start_without_history};
use sluice_model::{ProxyKey, ResourceType, Text};

use super::resource::{LocatedResource, locate};

/// A small engine that derives one resource of one proxy.
pub(crate) struct Replica<'a> {
    engine: Engine,
    handles: Handles,
    proxy: &'a ProxyKey,
    kind: ResourceType,
    name: &'a str,
    /// The segments of the resource that are read.
    segments: Vec<Text>,
}

impl<'a> Replica<'a> {
    /// Starts the engine with these records.
    pub(crate) fn start<'r>(
        options: &GraphOptions,
        records: impl IntoIterator<Item = &'r InputRecord>,
        proxy: &'a ProxyKey,
        resource: &'a LocatedResource,
    ) -> Self {
        let (engine, handles) = start_without_history(options, || {});
        engine.transaction(|tx| {
            records.into_iter().for_each(|record| tx.write_record(record));
            handles.inputs.mark_all_synced(tx);
        });
        let segments = resource.segments().into_iter().cloned().collect();
        Self { engine, handles, proxy, kind: resource.kind, name: &resource.name, segments }
    }

    /// The resource; `None` if the proxy has none.
    pub(crate) fn json(&self) -> Option<Value> {
        let snapshot = self.engine.snapshot();
        let located = locate(&snapshot, &self.handles, self.proxy, self.kind, self.name)?;
        located.only(&self.segments.iter().cloned().collect()).json(&snapshot, &self.handles)
    }

    /// Leaves out one of the records. Returns the resource without it.
    pub(crate) fn leave_out(&self, record: &InputRecord) -> Option<Value> {
        self.engine.transaction(|tx| tx.delete_record(record));
        self.json()
    }

    /// Writes a record again.
    pub(crate) fn put_back(&self, record: &InputRecord) {
        self.engine.transaction(|tx| tx.write_record(record));
    }
}
