//! Names of RBAC filters, and of the metadata by which external authorization filters select requests.

/// Name of the HTTP RBAC filter and of its metadata.
pub(crate) const RBAC_HTTP: &str = "envoy.filters.http.rbac";
/// Name of the RBAC filter of DENY policies at a gRPC server without an Envoy.
pub(super) const RBAC_HTTP_DENY: &str = "envoy.filters.http.rbac.DENY";
/// Name of the network RBAC filter and of its metadata.
pub(super) const RBAC_TCP: &str = "envoy.filters.network.rbac";
/// Prefix of the names of `CUSTOM` policies.
pub(super) const CUSTOM: &str = "istio-ext-authz";
/// Prefix of the metadata keys that name the matching `CUSTOM` policy.
pub(super) const CUSTOM_PREFIX: &str = "istio_ext_authz_";
