//! Connected proxies, and what is attached to them by selector: Sidecars, policies, Telemetries, extensions, EnvoyFilters.

pub(crate) mod attached;
pub(crate) mod collectors;
pub(crate) mod connected;
pub(crate) mod envoy_filter_limits;
pub(crate) mod envoy_filters;
pub(crate) mod patched_parts;
pub(crate) mod peer_authentications;
pub(crate) mod policies;
pub(crate) mod router_labels;
pub(crate) mod selected_labels;
pub(crate) mod sidecar_choice;
pub(crate) mod targets;
pub(crate) mod tiers;
pub(crate) mod wanted_jwks;
pub(crate) mod workloads;
