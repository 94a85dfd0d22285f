//! Random changes of a mesh.

use std::collections::BTreeMap;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::change::{self, ChangeKind, Plan};
use crate::fleet::Fleet;
use crate::measured_mesh::MeasuredMesh;

/// Counts the changes, and chooses the next ones at random.
pub(crate) struct Churn {
    random: StdRng,
    /// Changes by kind.
    pub(crate) rounds: BTreeMap<ChangeKind, usize>,
    /// Streams that were ended.
    pub(crate) reconnects: usize,
}

impl Churn {
    /// Equal seeds choose equal changes.
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed), rounds: BTreeMap::new(), reconnects: 0 }
    }

    /// Number of changes so far.
    pub(crate) fn changes(&self) -> usize {
        self.rounds.values().sum()
    }

    /// Makes a change of a random kind to a random service or namespace.
    pub(crate) fn change(&mut self, mesh: &MeasuredMesh, kinds: &[ChangeKind]) -> Result<()> {
        let shape = mesh.objects.shape;
        let Some(kind) = kinds.get(self.random.random_range(0..kinds.len().max(1))).copied() else { return Ok(()) };
        let count = self.rounds.entry(kind).or_default();
        *count += 1;
        // Added services have few names, so that the mesh does not grow.
        let round = match kind {
            ChangeKind::ServiceAdd | ChangeKind::ServiceRemove => self.random.random_range(0..8),
            // A kind with two states alternates between them.
            ChangeKind::Sidecar | ChangeKind::EndpointReady | ChangeKind::ScaleUp | ChangeKind::PeerAuthentication => {
                *count - 1
            }
            // Addresses have few generations.
            _ => *count % 16,
        };
        let target = match kind {
            // One file that is added and removed.
            ChangeKind::Sidecar => 0,
            // Few services are large at the same time.
            ChangeKind::ScaleUp => self.random.random_range(0..shape.services.min(8)),
            _ => self.random.random_range(0..shape.services),
        };
        let change = change::plan(kind, &shape, round, Plan { target, ..Plan::default() })?;
        if let Some((prepare, _)) = change.prepare {
            prepare(&mesh.objects)?;
        }
        (change.write)(&mesh.objects)?;
        Ok(())
    }

    /// Ends a proxy's stream.
    pub(crate) fn reconnect(&mut self, fleet: &Fleet) {
        if fleet.len() > 0 {
            self.reconnects += 1;
            fleet.request_disconnect(self.random.random_range(0..fleet.len()));
        }
    }
}
