//! Limits of the proxies that callers may connect.

use clap::Args;

/// Limits of the proxies that callers may connect. A proxy that exceeds one is refused; others are not affected.
#[derive(Args, Clone, Debug)]
pub struct ProxyLimitArgs {
    /// Maximum number of different profiles of proxies of one identity; 0 is no limit. A profile is what a proxy states
    /// and shared resources depend on: type, version, address families, certificate files, PROXY_CONFIG and the like.
    /// Each costs a copy of what its proxies see of the mesh.
    #[arg(
        long = "maxProfilesPerIdentity",
        alias = "max-profiles-per-identity",
        env = "SLUICE_MAX_PROFILES_PER_IDENTITY",
        value_name = "PROFILES",
        default_value_t = 16,
        global = true,
        help_heading = "Limits"
    )]
    pub max_profiles_per_identity: usize,
    /// The same for all callers without an identity together; 0 is no limit.
    #[arg(
        long = "maxAnonymousProfiles",
        alias = "max-anonymous-profiles",
        env = "SLUICE_MAX_ANONYMOUS_PROFILES",
        value_name = "PROFILES",
        default_value_t = 8,
        global = true,
        help_heading = "Limits"
    )]
    pub max_anonymous_profiles: usize,
    /// Maximum number of different locations (cluster, network, locality) of proxies of one identity; 0 is no limit.
    /// Each may cost a copy of the endpoints that its proxies see.
    #[arg(
        long = "maxLocationsPerIdentity",
        alias = "max-locations-per-identity",
        env = "SLUICE_MAX_LOCATIONS_PER_IDENTITY",
        value_name = "LOCATIONS",
        default_value_t = 32,
        global = true,
        help_heading = "Limits"
    )]
    pub max_locations_per_identity: usize,
    /// The same for all callers without an identity together; 0 is no limit.
    #[arg(
        long = "maxAnonymousLocations",
        alias = "max-anonymous-locations",
        env = "SLUICE_MAX_ANONYMOUS_LOCATIONS",
        value_name = "LOCATIONS",
        default_value_t = 64,
        global = true,
        help_heading = "Limits"
    )]
    pub max_anonymous_locations: usize,
    /// Maximum number of proxies of one identity; 0 is no limit.
    #[arg(
        long = "maxProxiesPerIdentity",
        alias = "max-proxies-per-identity",
        env = "SLUICE_MAX_PROXIES_PER_IDENTITY",
        value_name = "PROXIES",
        default_value_t = 5000,
        global = true,
        help_heading = "Limits"
    )]
    pub max_proxies_per_identity: usize,
    /// The same for all callers without an identity together; 0 is no limit.
    #[arg(
        long = "maxAnonymousProxies",
        alias = "max-anonymous-proxies",
        env = "SLUICE_MAX_ANONYMOUS_PROXIES",
        value_name = "PROXIES",
        default_value_t = 10_000,
        global = true,
        help_heading = "Limits"
    )]
    pub max_anonymous_proxies: usize,
}
