//! When the responses of the latest epochs were sent and acknowledged.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sluice_xds_protocol::ChangeTimes;

/// Epochs that are remembered.
const MAX_EPOCHS: usize = 512;

/// The responses of an epoch. A response with the changes of several epochs counts for the first of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EpochPush {
    /// When its earliest input passed each stage, with the number of the epoch.
    pub times: ChangeTimes,
    /// Responses that were sent.
    pub sent: usize,
    /// When the first of them was sent.
    pub first_sent: Instant,
    /// When the last of them was sent.
    pub last_sent: Instant,
    /// Responses that were acknowledged.
    pub acknowledged: usize,
    /// When the last of them was acknowledged.
    pub last_acknowledged: Option<Instant>,
}

/// The responses of the latest epochs, in the order of the epochs. Each response writes to it, so that it has cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct EpochPushes(Mutex<VecDeque<EpochPush>>);

impl EpochPushes {
    /// A response is sent with changes of the epoch.
    pub(crate) fn sent(&self, times: &ChangeTimes, now: Instant) {
        let mut pushes = self.lock();
        match find(&pushes, times.source_epoch) {
            Ok(at) => {
                let push = &mut pushes[at];
                push.sent += 1;
                push.last_sent = push.last_sent.max(now);
            }
            // An epoch that is older than all that are remembered.
            Err(0) if pushes.len() >= MAX_EPOCHS => {}
            Err(at) => {
                let push = EpochPush {
                    times: *times,
                    sent: 1,
                    first_sent: now,
                    last_sent: now,
                    acknowledged: 0,
                    last_acknowledged: None,
                };
                pushes.insert(at, push);
                if pushes.len() > MAX_EPOCHS {
                    pushes.pop_front();
                }
            }
        }
    }

    /// A response with changes of the epoch is acknowledged.
    pub(crate) fn acknowledged(&self, source_epoch: u64, now: Instant) {
        let mut pushes = self.lock();
        if let Ok(at) = find(&pushes, source_epoch) {
            let push = &mut pushes[at];
            push.acknowledged += 1;
            push.last_acknowledged = push.last_acknowledged.max(Some(now));
        }
    }

    pub(crate) fn all(&self) -> Vec<EpochPush> {
        self.lock().iter().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<EpochPush>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(pushes: &VecDeque<EpochPush>, source_epoch: u64) -> Result<usize, usize> {
    match pushes.back() {
        // Nearly always.
        Some(last) if last.times.source_epoch == source_epoch => Ok(pushes.len() - 1),
        _ => pushes.binary_search_by_key(&source_epoch, |push| push.times.source_epoch),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn responses_are_counted_for_their_epoch() {
        let (pushes, start) = (EpochPushes::default(), Instant::now());
        let at = |millis: u64| start + Duration::from_millis(millis);
        let times = |source_epoch: u64| ChangeTimes { source_epoch, ..ChangeTimes::at(start) };
        pushes.sent(&times(7), at(3));
        pushes.sent(&times(9), at(4));
        pushes.sent(&times(8), at(5));
        pushes.sent(&times(7), at(6));
        pushes.acknowledged(7, at(8));
        pushes.acknowledged(5, at(9));
        let all: Vec<_> =
            pushes.all().iter().map(|push| (push.times.source_epoch, push.sent, push.acknowledged)).collect();
        assert_eq!(all, [(7, 2, 1), (8, 1, 0), (9, 1, 0)]);
        let first = pushes.all()[0];
        assert_eq!((first.first_sent, first.last_sent, first.last_acknowledged), (at(3), at(6), Some(at(8))));
    }

    #[test]
    fn only_the_latest_epochs_are_remembered() {
        let (pushes, start) = (EpochPushes::default(), Instant::now());
        let last = MAX_EPOCHS as u64 + 10;
        for epoch in (1..=last).chain([3]) {
            pushes.sent(&ChangeTimes { source_epoch: epoch, ..ChangeTimes::at(start) }, start);
        }
        let all = pushes.all();
        assert_eq!((all.len(), all[0].times.source_epoch), (MAX_EPOCHS, 11));
        assert_eq!(all.last().map(|push| push.times.source_epoch), Some(last));
    }
}
