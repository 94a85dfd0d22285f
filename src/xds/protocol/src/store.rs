//! The latest outputs of the dataflow, by layer, and their resolution for the scope of each proxy.
//!
//! One writer applies whole epochs. It builds the next state beside the published one, sharing what does not change, and
//! publishes it with one atomic swap. Readers take a [`ScopeSnapshot`], which is of one epoch for all types; they never wait
//! for the writer. The bytes of a resource are kept once for all scopes, and an idle stream costs nothing.

mod aliases;
mod assembly;
mod entry;
mod epoch_changes;
mod layer_stack;
mod layer_table;
mod layers;
mod response_item;
mod snapshot;
mod stack_snapshot;
mod state;
mod type_snapshot;
mod writer;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use dashmap::DashMap;
use sluice_model::{ProxyKey, ResourceType};
use smallvec::SmallVec;

pub(crate) use aliases::has_aliases;
pub(crate) use entry::LayerEntry;
pub use entry::segment_field;
pub use epoch_changes::{ChangeTimes, EpochChanges};
pub use layer_stack::ProxyScope;
pub use response_item::ResolvedResource;
pub(crate) use response_item::ResponseItem;
pub use snapshot::ScopeSnapshot;
use state::StoreState;
pub(crate) use type_snapshot::Comparison;
pub use type_snapshot::TypeSnapshot;
use writer::Writer;

use crate::change_signal::ChangeSignal;
use crate::resource_types::ResourceTypeSet;

/// Weight of a new scope, in changed resources: all resources that the proxy sees may differ.
const SCOPE_CHANGE_WEIGHT: usize = 1 << 16;

/// The signals of a proxy's streams, by stream number. Nearly all proxies have one stream.
type ScopeWatchers = SmallVec<[(u64, Arc<ChangeSignal>); 1]>;

/// Called for each epoch that changes something.
type TriggerObserver = Box<dyn Fn(PushTrigger) + Send + Sync>;

/// The kind of an epoch's changes, for the count of push triggers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PushTrigger {
    /// Only endpoints.
    Endpoint,
    /// Resources of other types.
    Config,
    /// Only scopes of proxies.
    Proxy,
}

/// Latest outputs by layer.
#[derive(Default)]
pub struct Store {
    published: ArcSwap<StoreState>,
    writer: Mutex<Writer>,
    ready: AtomicBool,
    source_epoch: AtomicU64,
    /// Signals to notify when the scope of a proxy changes.
    scope_watchers: DashMap<ProxyKey, ScopeWatchers>,
    trigger_observer: OnceLock<TriggerObserver>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("epoch", &self.epoch()).finish_non_exhaustive()
    }
}

impl Store {
    /// Applies all changes of an epoch at once and notifies the streams that they concern.
    pub fn apply(&self, changes: EpochChanges, now: Instant) {
        let applied = {
            let mut writer = lock(&self.writer);
            let (next, applied) = writer.apply(&self.published.load(), changes, now);
            self.published.store(Arc::new(next));
            applied
        };
        if let Some((observe, trigger)) = self.trigger_observer.get().zip(applied.trigger()) {
            observe(trigger);
        }
        for (layer, changed) in applied.layers.into_values().flatten() {
            layer.notify(applied.epoch, changed, now);
        }
        for proxy in &applied.proxies {
            if let Some(watchers) = self.scope_watchers.get(proxy) {
                watchers.iter().for_each(|(_, signal)| signal.notify(applied.epoch, SCOPE_CHANGE_WEIGHT, now));
            }
        }
    }

    /// Calls `observe` for each epoch that changes something; only the first call of this method has an effect.
    pub fn observe_triggers(&self, observe: impl Fn(PushTrigger) + Send + Sync + 'static) {
        self.trigger_observer.get_or_init(|| Box::new(observe));
    }

    /// Declares that the initial state is complete, so that clients may be served (S25).
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Whether clients may be served.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Number of epochs applied. This is not the engine's epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.published.load().epoch()
    }

    /// Records that all changes of the engine up to this epoch of it are applied.
    pub fn set_source_epoch(&self, epoch: u64) {
        self.source_epoch.store(epoch, Ordering::Release);
    }

    /// The epoch of the engine up to which all its changes are applied.
    #[must_use]
    pub fn source_epoch(&self) -> u64 {
        self.source_epoch.load(Ordering::Acquire)
    }

    /// The current resources of these types in the proxy's scope.
    pub fn snapshot(&self, proxy: &ProxyKey, kinds: impl IntoIterator<Item = ResourceType>) -> ScopeSnapshot {
        let mut snapshot = ScopeSnapshot::default();
        self.refresh(&mut snapshot, proxy, kinds.into_iter().collect());
        snapshot
    }

    /// Brings an earlier snapshot of the same proxy up to date. Types that did not change are not visited.
    pub fn refresh(&self, snapshot: &mut ScopeSnapshot, proxy: &ProxyKey, kinds: ResourceTypeSet) {
        snapshot.refresh(&self.published.load(), proxy, kinds);
    }

    /// Drops encoded rows that were not used lately. Call it every few seconds.
    pub fn drop_unused_encodings(&self) {
        for layer in self.published.load_full().layers.iter() {
            for chunk in layer.table.chunks() {
                chunk.drop_unused();
                for segments in chunk.rows().iter().filter_map(|(_, entry)| entry.segments.as_ref()) {
                    segments.rows.chunks().iter().for_each(|chunk| chunk.drop_unused());
                }
            }
        }
    }

    /// When the changes of `epoch` arrived, or of the first remembered epoch after it.
    #[must_use]
    pub fn change_times(&self, epoch: u64) -> Option<ChangeTimes> {
        self.published.load().change_times(epoch)
    }

    /// Notifies the signal when the scope of the proxy changes, until [`Self::unwatch_proxy`].
    pub fn watch_proxy(&self, proxy: &ProxyKey, stream: u64, signal: &Arc<ChangeSignal>) {
        self.scope_watchers.entry(proxy.clone()).or_default().push((stream, signal.clone()));
    }

    /// Ends [`Self::watch_proxy`].
    pub fn unwatch_proxy(&self, proxy: &ProxyKey, stream: u64) {
        if let Some(mut watchers) = self.scope_watchers.get_mut(proxy) {
            watchers.retain(|(watching, _)| *watching != stream);
        }
        self.scope_watchers.remove_if(proxy, |_, watchers| watchers.is_empty());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
