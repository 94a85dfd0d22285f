//! Traffic directions.

/// Traffic direction of a filter chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ListenerClass {
    /// Outbound traffic of a sidecar.
    Outbound,
    /// Inbound traffic of a sidecar.
    Inbound,
    /// A gateway.
    Gateway,
}
