//! Proxies of workloads outside Kubernetes, which register themselves and report their health (S13, S14).

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use sluice_model::Proxy;
use sluice_xds_protocol::ChangeSignal;

/// Follows the streams of proxies, and the health that they report. Calls must not block.
pub trait WorkloadObserver: Send + Sync + 'static {
    /// A proxy has connected. `refusal` ends its stream.
    fn connected(&self, stream: u64, proxy: &Arc<Proxy>, at: SystemTime, refusal: StreamRefusal);

    /// A stream has ended.
    fn disconnected(&self, stream: u64, proxy: &Arc<Proxy>);

    /// A proxy reports over a stream that its workload is healthy, or why it is not.
    fn reported(&self, stream: u64, proxy: &Arc<Proxy>, health: Result<(), String>);
}

/// Ends a stream with a reason.
#[derive(Clone)]
pub struct StreamRefusal {
    reason: Arc<OnceLock<String>>,
    signal: Arc<ChangeSignal>,
}

impl StreamRefusal {
    /// For the stream that a signal wakes.
    pub(crate) fn new(signal: Arc<ChangeSignal>) -> Self {
        Self { reason: Arc::default(), signal }
    }

    /// Ends the stream. Only the first reason counts.
    pub fn refuse(&self, reason: String) {
        let _ = self.reason.set(reason);
        self.signal.refuse();
    }

    /// The reason, once the stream is to end.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.signal.is_refused().then(|| self.reason.get())?.map(String::as_str)
    }
}
