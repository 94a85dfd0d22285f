//! Follows the changes of objects that ask for the condition `Reconciled` until proxies have acknowledged them (K15).
//!
//! The results are an input of the graph, which puts the condition beside the others of the object. Nothing is followed, and
//! no timer runs, while no object asks.

mod followed;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_graph::StatusKey;
use sluice_model::ConditionRequest;
use sluice_tasks::sleep_until_due;
use tokio_util::sync::CancellationToken;

use crate::AdminState;
use followed::FollowedObject;

/// Time from a change to its first result. Most changes are acknowledged by then, and so are written once.
const SETTLE_TIME: Duration = Duration::from_millis(250);
/// Shortest time between two results of an object.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two polls is at least this many times that of a poll.
const POLL_SHARE: u32 = 10;
/// After a start, proxies connect again in this time. Objects that were there before are not acknowledged earlier.
const RECONNECT_TIME: Duration = Duration::from_secs(30);

/// Writes how far the connected proxies are with the objects of [`sluice_graph::Handles::condition_requests`].
pub struct ReconciliationTracker {
    state: Arc<AdminState>,
    reconnect_time: Duration,
}

impl ReconciliationTracker {
    /// Follows the objects of a control plane.
    #[must_use]
    pub fn new(state: Arc<AdminState>) -> Self {
        Self { state, reconnect_time: RECONNECT_TIME }
    }

    /// Runs until the process stops.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut feed = self.state.engine.feed().only(&self.state.handles.condition_requests);
        let mut followed = FollowedObjects::new(Instant::now() + self.reconnect_time);
        loop {
            let due = followed.next_due();
            let batch = tokio::select! {
                () = stop.cancelled() => return,
                batch = feed.next() => match batch {
                    Some(batch) => Some(batch),
                    None => return,
                },
                () = sleep_until_due(due.map(Into::into)) => None,
            };
            if let Some(batch) = batch {
                let is_first = batch.is_first();
                for event in batch.events(&self.state.handles.condition_requests) {
                    followed.change(&self.state, (*event.key).clone(), event.new, is_first);
                }
                continue;
            }
            // It waits for the dataflow thread, and visits all streams.
            let state = self.state.clone();
            let polled = tokio::task::spawn_blocking(move || {
                followed.poll_due(&state);
                followed
            });
            followed = match polled.await {
                Ok(followed) => followed,
                // The supervisor of this task restarts it.
                Err(error) => match error.try_into_panic() {
                    Ok(reason) => std::panic::resume_unwind(reason),
                    Err(_) => return,
                },
            };
        }
    }
}

/// The objects that ask for the condition.
struct FollowedObjects {
    objects: BTreeMap<StatusKey, FollowedObject>,
    /// Proxies have connected again by then.
    reconnected: Instant,
}

impl FollowedObjects {
    fn new(reconnected: Instant) -> Self {
        Self { objects: BTreeMap::new(), reconnected }
    }

    /// The time of the next poll of an object.
    fn next_due(&self) -> Option<Instant> {
        self.objects.values().filter_map(FollowedObject::due).min()
    }

    /// Takes a change of a request. `is_first` is whether it was there before this task began.
    fn change(&mut self, state: &AdminState, key: StatusKey, request: Option<Arc<ConditionRequest>>, is_first: bool) {
        let Some(request) = request.filter(|request| request.is_requested) else {
            self.objects.remove(&key);
            state.handles.inputs.reconciliations.delete(key);
            return;
        };
        let now = Instant::now();
        match self.objects.get_mut(&key) {
            Some(object) => object.change(request, now),
            None => {
                let not_before = if is_first { self.reconnected } else { now };
                self.objects.insert(key, FollowedObject::new(request, now, not_before));
            }
        }
    }

    fn poll_due(&mut self, state: &AdminState) {
        let start = Instant::now();
        let due = |object: &FollowedObject| object.due().is_some_and(|due| due <= start);
        let mut polled = Vec::new();
        for (key, object) in self.objects.iter_mut().filter(|(_, object)| due(object)) {
            if let Some(result) = object.poll(state, key, start) {
                state.handles.inputs.reconciliations.set(key.clone(), result);
            }
            polled.push(key.clone());
        }
        let end = Instant::now();
        let next = end + MIN_INTERVAL.max((end - start) * POLL_SHARE);
        for key in polled {
            if let Some(object) = self.objects.get_mut(&key) {
                object.delay_until(next);
            }
        }
    }
}
