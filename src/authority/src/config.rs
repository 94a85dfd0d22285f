//! Settings of the certificate authority.

use std::path::PathBuf;
use std::time::Duration;

use sluice_ca::{LifetimeLimits, NewKey};

const ONE_HOUR: Duration = Duration::from_secs(3600);
const TEN_YEARS: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Settings of the certificate authority.
#[derive(Clone, Debug)]
pub struct AuthorityConfig {
    /// `ROOT_CA_DIR`: the directory of a plugged-in authority.
    pub directory: PathBuf,
    /// `--createCA`: generate a root in that directory if it is empty.
    pub create: bool,
    /// `CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE` or `SLUICE_SELF_SIGNED_CA_ECC_CURVE`: the key of a generated root. The
    /// default is RSA with 2048 bits in a cluster, as in istiod, and ECDSA P-256 without a cluster.
    pub root_key: Option<NewKey>,
    /// `CITADEL_SELF_SIGNED_CA_CERT_TTL`: lifetime of a generated root.
    pub root_lifetime: Duration,
    /// `CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL`: interval of the checks whether a generated root has to be
    /// renewed; zero disables them.
    pub check_interval: Duration,
    /// `CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE`: a root is renewed when this percentage of its lifetime
    /// is left.
    pub grace_percent: u32,
    /// `CITADEL_ENABLE_JITTER_FOR_ROOT_CERT_ROTATOR`: the first check is at a random time, so that replicas check at
    /// different times.
    pub jitter: bool,
    /// `USE_CACERTS_FOR_SELF_SIGNED_CA`: a generated root is stored in Secret `cacerts`.
    pub in_cacerts: bool,
    /// `USE_REMOTE_CERTS`: without files, the plugged-in authority is read from Secret `cacerts`.
    pub remote_certs: bool,
    /// `ISTIO_MULTIROOT_MESH`: roots may be added and removed.
    pub multi_root: bool,
    /// `PILOT_ENABLE_CA_CRL`: revocation lists are read, and written to namespaces.
    pub revocations: bool,
    /// `PILOT_CA_CERT_CONFIGMAP`: ConfigMap of the roots in each namespace.
    pub roots_config_map: String,
    /// `PILOT_CRL_CONFIGMAP`: ConfigMap of the revocation lists in each namespace.
    pub revoked_config_map: String,
    /// `ENABLE_CLUSTER_TRUST_BUNDLE_API`: the roots are in a ClusterTrustBundle, not in a ConfigMap of each namespace.
    pub cluster_trust_bundle: bool,
    /// `DEFAULT_WORKLOAD_CERT_TTL` and `MAX_WORKLOAD_CERT_TTL`: lifetimes of workload certificates.
    pub lifetimes: LifetimeLimits,
}

impl Default for AuthorityConfig {
    fn default() -> Self {
        Self {
            directory: PathBuf::from("./etc/cacerts"),
            create: false,
            root_key: None,
            root_lifetime: TEN_YEARS,
            check_interval: ONE_HOUR,
            grace_percent: 20,
            jitter: true,
            in_cacerts: false,
            remote_certs: false,
            multi_root: false,
            revocations: true,
            roots_config_map: "istio-ca-root-cert".to_owned(),
            revoked_config_map: "istio-ca-crl".to_owned(),
            cluster_trust_bundle: false,
            lifetimes: LifetimeLimits::default(),
        }
    }
}
