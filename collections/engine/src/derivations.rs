//! All records of a collection by the record that made them, with the keys of the other records that were read.

use std::collections::VecDeque;

use crossbeam_channel::bounded;
use serde_json::Value as Json;

use crate::command::{DerivedGroup, EngineCommand};
use crate::dump::Dump;
use crate::engine::Engine;
use crate::node::NodeId;
use crate::value::Erased;

/// Keys whose makers are read between two epochs.
const KEYS_PER_REQUEST: usize = 4_096;
/// Records whose reads are found between two epochs. A closure of `derive` runs again for each.
const GROUPS_PER_REQUEST: usize = 64;

/// What the record of one key of the first parent made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Derivation {
    /// Its key in the first parent, which may be an index.
    pub maker: Json,
    /// The keys that it made, in order.
    pub outputs: Vec<Json>,
    /// The other collections that were read for it, by name, in the order of the graph.
    pub reads: Vec<(String, KeysRead)>,
}

/// The keys of a collection that were read for a record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum KeysRead {
    /// These, whether the collection has them or not.
    Some(Vec<Json>),
    /// All records.
    All,
}

/// The [`Derivation`]s of a collection, in the order of the makers' keys. The keys are held from the start; what was read
/// is found a few records at a time, so a slow reader delays no epoch.
///
/// The records are those of the dump. What was read is that of the present: of a record that has changed since, the later
/// reads; of one that was removed since, none.
pub struct Derivations<'a> {
    engine: &'a Engine,
    node: NodeId,
    groups: VecDeque<DerivedGroup>,
    found: VecDeque<Derivation>,
}

impl Engine {
    /// Which records made the records of a dump. `None` when the engine has stopped. Inputs have no derivations.
    #[must_use]
    pub fn derivations(&self, dump: &Dump) -> Option<Derivations<'_>> {
        let mut pairs: Vec<(Erased, Erased)> = match dump.info.is_index {
            true => {
                let row = |(key, row): &(Erased, Erased)| Some((row.as_pair()?.0.clone(), key.clone()));
                dump.rows.iter().filter_map(row).collect()
            }
            false => self.made_by(dump)?,
        };
        pairs.sort_unstable_by(|a, b| a.0.by_content(&b.0).then_with(|| a.1.by_content(&b.1)));
        pairs.dedup();
        let mut groups: VecDeque<DerivedGroup> = VecDeque::new();
        for (maker, output) in pairs {
            match groups.back_mut() {
                Some(group) if group.maker == maker => group.outputs.push(output),
                _ => groups.push_back(DerivedGroup { maker, outputs: vec![output] }),
            }
        }
        Some(Derivations { engine: self, node: dump.info.node, groups, found: VecDeque::new() })
    }

    /// Pairs of maker and output.
    fn made_by(&self, dump: &Dump) -> Option<Vec<(Erased, Erased)>> {
        let mut pairs = Vec::with_capacity(dump.rows.len());
        for rows in dump.rows.chunks(KEYS_PER_REQUEST) {
            let keys: Vec<Erased> = rows.iter().map(|(key, _)| key.clone()).collect();
            let (reply, answer) = bounded(1);
            self.send(EngineCommand::Makers(dump.info.node, keys, reply));
            let makers = answer.recv().ok()?;
            let of_row = |((key, _), makers): (&(Erased, Erased), Vec<Erased>)| {
                makers.into_iter().map(|maker| (maker, key.clone())).collect::<Vec<_>>()
            };
            pairs.extend(rows.iter().zip(makers).flat_map(of_row));
        }
        Some(pairs)
    }
}

impl Derivations<'_> {
    /// Whether there are no more.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.found.is_empty()
    }

    /// Finds the reads of the next groups. `None` when the engine has stopped.
    fn read_more(&mut self) -> Option<()> {
        let groups: Vec<DerivedGroup> = self.groups.drain(..GROUPS_PER_REQUEST.min(self.groups.len())).collect();
        let (reply, answer) = bounded(1);
        self.engine.send(EngineCommand::Reads(self.node, groups, reply));
        let (groups, reads) = answer.recv().ok()?;
        self.found = groups.iter().zip(reads).map(|(group, reads)| self.derivation(group, &reads)).collect();
        Some(())
    }

    fn derivation(&self, group: &DerivedGroup, reads: &[(NodeId, Option<Erased>)]) -> Derivation {
        let mut by_node: Vec<(NodeId, KeysRead)> = Vec::new();
        for (node, key) in reads {
            let at = by_node.iter().position(|(known, _)| known == node).unwrap_or_else(|| {
                by_node.push((*node, KeysRead::Some(Vec::new())));
                by_node.len() - 1
            });
            match (key, &mut by_node[at].1) {
                (None, keys) => *keys = KeysRead::All,
                (Some(key), KeysRead::Some(keys)) => keys.push(key.json()),
                (Some(_), KeysRead::All) => {}
            }
        }
        by_node.sort_by_key(|(node, _)| *node);
        let infos = self.engine.infos();
        Derivation {
            maker: group.maker.json(),
            outputs: group.outputs.iter().map(Erased::json).collect(),
            reads: by_node.into_iter().map(|(node, keys)| (infos[node].name.clone(), keys)).collect(),
        }
    }
}

impl Iterator for Derivations<'_> {
    type Item = Derivation;

    fn next(&mut self) -> Option<Derivation> {
        if self.found.is_empty() && !self.groups.is_empty() {
            self.read_more()?;
        }
        self.found.pop_front()
    }
}
