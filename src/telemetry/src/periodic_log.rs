//! Limits how often an event is logged.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two messages about the same kind of event.
const INTERVAL: Duration = Duration::from_secs(60);

/// Permits one message a minute about events that a client can cause at will.
#[derive(Debug, Default)]
pub struct PeriodicLog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    /// Number of events since the last message.
    events: u64,
}

impl PeriodicLog {
    /// Counts an event. Returns the number of events since the last message if a message is due.
    pub fn event(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.events += 1;
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_a_minute_has_the_number_of_events() {
        let (log, start) = (PeriodicLog::default(), Instant::now());
        let events = [0, 1, 59, 60, 61, 130].map(|second| log.event(start + Duration::from_secs(second)));
        assert_eq!(events, [Some(1), None, None, Some(3), None, Some(2)]);
    }
}
