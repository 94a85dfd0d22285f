//! Limits of what the objects of one namespace may cost.

use clap::Args;

/// Limits of what the objects of one namespace may cost. What exceeds one does not apply, and has a reject; the objects of
/// other namespaces are not affected.
#[derive(Args, Clone, Debug)]
pub struct NamespaceLimitArgs {
    /// Maximum number of JWKS that are fetched for the RequestAuthentications of one namespace; 0 is no limit.
    #[arg(
        long = "maxJwksPerNamespace",
        alias = "max-jwks-per-namespace",
        env = "SLUICE_MAX_JWKS_PER_NAMESPACE",
        value_name = "JWKS",
        default_value_t = 100,
        global = true,
        help_heading = "Limits"
    )]
    pub max_key_sets: usize,
    /// Maximum size of these JWKS in bytes; 0 is no limit.
    #[arg(
        long = "maxJwksBytesPerNamespace",
        alias = "max-jwks-bytes-per-namespace",
        env = "SLUICE_MAX_JWKS_BYTES_PER_NAMESPACE",
        value_name = "BYTES",
        default_value_t = 4_194_304,
        global = true,
        help_heading = "Limits"
    )]
    pub max_key_set_bytes: usize,
    /// Maximum number of patches in the EnvoyFilters of one namespace; 0 is no limit.
    #[arg(
        long = "maxEnvoyFilterPatchesPerNamespace",
        alias = "max-envoy-filter-patches-per-namespace",
        env = "SLUICE_MAX_ENVOY_FILTER_PATCHES_PER_NAMESPACE",
        value_name = "PATCHES",
        default_value_t = 1000,
        global = true,
        help_heading = "Limits"
    )]
    pub max_patches: usize,
    /// Maximum size of the values of these patches in bytes; 0 is no limit.
    #[arg(
        long = "maxEnvoyFilterBytesPerNamespace",
        alias = "max-envoy-filter-bytes-per-namespace",
        env = "SLUICE_MAX_ENVOY_FILTER_BYTES_PER_NAMESPACE",
        value_name = "BYTES",
        default_value_t = 4_194_304,
        global = true,
        help_heading = "Limits"
    )]
    pub max_patch_bytes: usize,
    /// Maximum size in bytes of the values of those patches that name no cluster, listener or virtual host; 0 is no limit.
    /// Each resource that they change may grow by this much.
    #[arg(
        long = "maxEnvoyFilterRepeatedBytesPerNamespace",
        alias = "max-envoy-filter-repeated-bytes-per-namespace",
        env = "SLUICE_MAX_ENVOY_FILTER_REPEATED_BYTES_PER_NAMESPACE",
        value_name = "BYTES",
        default_value_t = 262_144,
        global = true,
        help_heading = "Limits"
    )]
    pub max_repeated_patch_bytes: usize,
    /// Maximum size in bytes of the values of the patches of one namespace, each times the clusters, listeners or routes of the
    /// mesh that the patch may match; 0 is no limit.
    #[arg(
        long = "maxEnvoyFilterCopiedBytesPerNamespace",
        alias = "max-envoy-filter-copied-bytes-per-namespace",
        env = "SLUICE_MAX_ENVOY_FILTER_COPIED_BYTES_PER_NAMESPACE",
        value_name = "BYTES",
        default_value_t = 1_073_741_824,
        global = true,
        help_heading = "Limits"
    )]
    pub max_copied_patch_bytes: usize,
    /// Maximum number of these patches, each times the clusters, listeners or routes that it may match; 0 is no limit.
    #[arg(
        long = "maxEnvoyFilterPatchedPartsPerNamespace",
        alias = "max-envoy-filter-patched-parts-per-namespace",
        env = "SLUICE_MAX_ENVOY_FILTER_PATCHED_PARTS_PER_NAMESPACE",
        value_name = "PARTS",
        default_value_t = 1_000_000,
        global = true,
        help_heading = "Limits"
    )]
    pub max_patched_parts: usize,
}
