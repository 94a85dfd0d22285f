//! The resources in one proxy's scope at one epoch.

use std::sync::Arc;

use sluice_model::{ProxyKey, ResourceType};

use super::epoch_changes::ChangeTimes;
use super::layer_stack::ProxyScope;
use super::state::StoreState;
use super::type_snapshot::TypeSnapshot;
use crate::resource_types::ResourceTypeSet;

/// The resources in one proxy's scope at one epoch.
#[derive(Clone, Debug, Default)]
pub struct ScopeSnapshot {
    /// The store's epoch.
    pub epoch: u64,
    /// When the changes of that epoch arrived.
    times: Option<ChangeTimes>,
    /// The proxy's scope; `None` until it is derived.
    scope: Option<Arc<ProxyScope>>,
    views: [Option<TypeSnapshot>; ResourceType::ALL.len()],
}

impl ScopeSnapshot {
    /// The resources of a type; `None` if the proxy has no scope yet, or the snapshot does not include the type.
    #[must_use]
    pub fn view(&self, kind: ResourceType) -> Option<&TypeSnapshot> {
        self.views.get(kind as usize)?.as_ref()
    }

    /// The proxy's scope; `None` until it is derived.
    #[must_use]
    pub fn scope(&self) -> Option<&Arc<ProxyScope>> {
        self.scope.as_ref()
    }

    /// Whether the layers of a type are derived for the proxy.
    pub(crate) fn has_layers(&self, kind: ResourceType) -> bool {
        self.scope.as_ref().is_some_and(|scope| scope.scope().layers.contains_key(&kind))
    }

    /// When the changes of `epoch` arrived, if the snapshot is of that epoch.
    #[must_use]
    pub fn change_times(&self, epoch: u64) -> Option<ChangeTimes> {
        self.times.filter(|_| self.epoch == epoch)
    }

    /// Removes the scope and all resources, for a proxy that may not see them.
    pub fn clear(&mut self) {
        *self = Self { epoch: self.epoch, ..Self::default() };
    }

    /// Brings the snapshot of the same proxy up to date.
    pub(super) fn refresh(&mut self, state: &StoreState, proxy: &ProxyKey, kinds: ResourceTypeSet) {
        if self.scope.is_none() || state.scopes_changed > self.epoch {
            let scope = state.scopes.get(proxy);
            if self.scope.as_ref().map(Arc::as_ptr) != scope.map(Arc::as_ptr) {
                *self = Self { scope: scope.cloned(), ..Self::default() };
            }
        }
        let before = std::mem::replace(&mut self.epoch, state.epoch());
        self.times = state.times.back().map(|(_, times)| *times);
        let Some(scope) = &self.scope else { return };
        for kind in ResourceType::ALL {
            let (Some(view), Some(changed)) = (self.views.get_mut(kind as usize), state.changed.get(kind as usize))
            else {
                continue;
            };
            if !kinds.contains(kind) {
                // The view is not kept up to date any more, so a later request for the type starts without one.
                *view = None;
            } else if view.is_none() || *changed > before {
                *view = Some(scope.view(kind, &state.layers));
            }
        }
    }
}
