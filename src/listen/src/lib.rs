//! Listeners: limits of connections in total and for each address, a back-off when connections cannot be accepted, and the
//! server of the HTTP ports.

mod accept_backoff;
mod http1;
mod limits;
mod listener;
mod metrics;
mod slots;
mod stalled_write;

pub use accept_backoff::AcceptBackoff;
pub use http1::{BodyLimits, serve_connections, serve_http, serve_http_connection};
pub use limits::{ListenLimits, PortOptions};
pub use listener::{AcceptedConnection, Listener};
pub use metrics::ListenMetrics;
pub use slots::{ConnectionEnd, ConnectionSlot, network_of};
pub use sluice_telemetry::PeriodicLog;
