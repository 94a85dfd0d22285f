//! The published state of the store.

use std::sync::Arc;

use imbl::{HashMap, Vector};
use sluice_model::{ProxyKey, ResourceType};

use super::epoch_changes::ChangeTimes;
use super::layer_stack::ProxyScope;
use super::layers::Layers;

/// One epoch of the store. It is immutable once it is published. Its collections are persistent: the next state shares what
/// does not change.
#[derive(Clone, Debug, Default)]
pub(super) struct StoreState {
    /// The content of all layers, with the number of the epoch.
    pub(super) layers: Layers,
    /// By type: the epoch that last changed a layer of the type.
    pub(super) changed: [u64; ResourceType::ALL.len()],
    /// The epoch that last changed the scope of any proxy.
    pub(super) scopes_changed: u64,
    pub(super) scopes: HashMap<ProxyKey, Arc<ProxyScope>>,
    /// When the changes of the latest epochs arrived, in order.
    pub(super) times: Vector<(u64, ChangeTimes)>,
}

impl StoreState {
    /// Number of epochs applied.
    pub(super) fn epoch(&self) -> u64 {
        self.layers.epoch
    }

    /// When the changes of `epoch` arrived, or of the first remembered epoch after it.
    pub(super) fn change_times(&self, epoch: u64) -> Option<ChangeTimes> {
        let first = self.times.front().map(|(first, _)| *first)?;
        // Epochs are consecutive.
        let at = usize::try_from(epoch.saturating_sub(first)).ok()?;
        self.times.get(at).map(|(_, times)| *times)
    }
}
