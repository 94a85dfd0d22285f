//! An identified ADS stream.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use sluice_auth::Caller;
use sluice_model::{Proxy, ProxyKey};
use sluice_xds_protocol::{ChangeSignal, Session};
use tracing::Span;

use crate::version_counts::CountedStream;
use crate::workload_observer::StreamRefusal;

/// An identified ADS stream: its first request carried a node.
pub(crate) struct Connection {
    /// Number of the stream, in order of connecting.
    pub(crate) id: u64,
    pub(crate) key: ProxyKey,
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) caller: Caller,
    pub(crate) connected_at: SystemTime,
    /// The same time on the monotonic clock.
    pub(crate) connected: Instant,
    pub(crate) session: Mutex<Session>,
    pub(crate) signal: Arc<ChangeSignal>,
    pub(crate) span: Span,
    /// Ends the stream.
    pub(crate) refusal: StreamRefusal,
    /// Counts the stream in metrics.
    pub(crate) _counted: CountedStream,
}

impl Connection {
    pub(crate) fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
