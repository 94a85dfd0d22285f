//! The metric of the oldest unacknowledged change, computed at each scrape.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use sluice_telemetry::Sample;

use crate::connection::Connection;
use crate::discovery_server::DiscoveryServer;

/// Age of the oldest change that a connected proxy has not acknowledged.
pub struct UnacknowledgedAge(Arc<DiscoveryServer>);

impl UnacknowledgedAge {
    /// Adds the metric to the registry.
    pub fn register(server: Arc<DiscoveryServer>, registry: &mut Registry) {
        registry.register_collector(Box::new(Self(server)));
    }

    /// The age; zero if all is acknowledged.
    fn oldest(&self, now: Instant) -> Duration {
        let ages = self.0.connections();
        ages.values().map(|connection| self.age(connection, now)).max().unwrap_or_default()
    }

    fn age(&self, connection: &Connection, now: Instant) -> Duration {
        let session = connection.session();
        let sent = session.status().into_values().filter_map(|status| status.unacked_since);
        let unsent = session.unsent_since().and_then(|epoch| self.0.store().change_times(epoch));
        // A new stream is not behind a change that is older than itself.
        let unsent = unsent.map(|times| times.source.max(connection.connected));
        sent.chain(unsent).map(|since| now.saturating_duration_since(since)).max().unwrap_or_default()
    }
}

impl fmt::Debug for UnacknowledgedAge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnacknowledgedAge")
    }
}

impl Collector for UnacknowledgedAge {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let name = "sluice_oldest_unacknowledged_change_seconds";
        let help =
            "Age of the oldest change that a connected proxy has not acknowledged, in seconds; 0 if there is none";
        let sample = Sample { value: self.oldest(Instant::now()).as_secs_f64(), metric_type: MetricType::Gauge };
        sample.encode(out.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }
}
