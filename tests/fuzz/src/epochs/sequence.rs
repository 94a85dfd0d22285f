//! Sequences of epochs as data: written as YAML, replayed and minimised.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Context, Result};
use sluice_parse::yaml::{Limits, parse_documents};

use super::history::{GraphVariant, MeshHistory};
use super::input_change::InputChange;
use crate::failure;
use crate::minimise::shrink;
use crate::mutate::{paths, remove};
use crate::rng::FuzzRng;
use crate::violation::Violation;

/// First line of a file with a sequence, followed by the variant of the graph.
const HEAD: &str = "# epochs of a graph: ";

/// The epochs of a graph, each with its changes.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochSequence {
    /// The options of the graph.
    pub variant: GraphVariant,
    /// The changes of each epoch.
    pub epochs: Vec<Vec<InputChange>>,
}

impl EpochSequence {
    /// The finding after these epochs, if there is one.
    #[must_use]
    pub fn replay(&self) -> Option<Violation> {
        let mut history = MeshHistory::start(self.variant);
        let applied = self.epochs.iter().try_for_each(|epoch| history.apply(epoch));
        applied.and_then(|()| history.compare(&mut FuzzRng::new(1, 1))).err()
    }

    fn reproduces(&self, signature: &str) -> bool {
        // The collection in which a difference shows first may change.
        let kind = |signature: &str| signature.split(" in ").next().unwrap_or_default().to_owned();
        self.replay().is_some_and(|found| kind(&found.signature) == kind(signature))
    }

    /// The epochs, changes and fields of objects that the finding needs, as far as the deadline allows.
    #[must_use]
    pub fn minimise(mut self, finding: &Violation, deadline: Instant) -> Self {
        let variant = self.variant;
        let reproduces = |epochs: &[Vec<InputChange>]| {
            let rest = Self { variant, epochs: epochs.to_vec() };
            Instant::now() < deadline && rest.reproduces(&finding.signature)
        };
        shrink(&mut self.epochs, |epochs| reproduces(epochs));
        for number in 0..self.epochs.len() {
            let epochs = self.epochs.clone();
            shrink(&mut self.epochs[number], |changes| {
                let mut epochs = epochs.clone();
                epochs[number] = changes.to_vec();
                reproduces(&epochs)
            });
        }
        let places: Vec<(usize, usize)> = self
            .epochs
            .iter()
            .enumerate()
            .flat_map(|(epoch, changes)| (0..changes.len()).map(move |change| (epoch, change)))
            .collect();
        for (epoch, change) in places {
            // Larger values are tried first, because a removed value needs no tries for its parts.
            let mut tried = 1;
            while Instant::now() < deadline {
                let mut epochs = self.epochs.clone();
                let InputChange::Set(seed) = &mut epochs[epoch][change] else { break };
                let Some(path) = paths(&seed.object).get(tried).cloned() else { break };
                if remove(&mut seed.object, &path).is_some() && reproduces(&epochs) {
                    self.epochs = epochs;
                } else {
                    tried += 1;
                }
            }
        }
        self
    }

    /// The text of a file that [`EpochSequence::read`] reads.
    #[must_use]
    pub fn write(&self, finding: &Violation) -> String {
        let name = GraphVariant::ALL.iter().find(|(_, variant)| *variant == self.variant).map_or("", |(name, _)| name);
        let mut text = format!("{HEAD}{name}\n");
        for line in finding.signature.lines().chain(finding.message.lines()) {
            let _ = writeln!(text, "# {line}");
        }
        for epoch in &self.epochs {
            text.push_str("---\n");
            failure::yaml(&mut text, &epoch.iter().map(InputChange::to_value).collect(), 0, false);
        }
        text
    }

    /// Reads a text of [`EpochSequence::write`]; `None` if it is another text.
    ///
    /// # Errors
    /// The text is incomplete.
    pub fn read(text: &str) -> Result<Option<Self>> {
        let Some(name) = text.lines().next().and_then(|line| line.strip_prefix(HEAD)) else { return Ok(None) };
        let variant = GraphVariant::ALL.iter().find(|(known, _)| *known == name).context("an unknown variant")?.1;
        let mut epochs = Vec::new();
        for document in parse_documents(text, &Limits::default()) {
            let changes = document?.value;
            let changes = changes.as_array().context("an epoch is not a list")?;
            epochs.push(
                changes
                    .iter()
                    .map(|change| InputChange::from_value(change).context("an unknown change"))
                    .collect::<Result<_>>()?,
            );
        }
        Ok(Some(Self { variant, epochs }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::seeds::Seed;

    #[test]
    fn a_written_sequence_is_read_back_unchanged() {
        let seed = Seed { cluster: "west".into(), object: json!({ "kind": "A", "spec": { "a": [1, "x: y"] } }) };
        let sequence = EpochSequence {
            variant: GraphVariant::Ambient,
            epochs: vec![
                vec![InputChange::Set(seed.clone()), InputChange::Connect(json!({ "id": "n" }), true)],
                vec![InputChange::Delete(seed), InputChange::Disconnect("n".into())],
                vec![
                    InputChange::Resolve("a.b".into(), vec!["10.0.0.1".into()]),
                    InputChange::Trust(vec!["PEM".into()]),
                ],
            ],
        };
        let finding = Violation { signature: "s".into(), message: "m\nn".into() };
        let read = EpochSequence::read(&sequence.write(&finding)).expect("a sequence");
        assert_eq!(read, Some(sequence));
        assert_eq!(EpochSequence::read("# other\n").expect("another text"), None);
    }
}
