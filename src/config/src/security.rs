//! Flags and variables of the certificate authority, the secure port, and authentication.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use sluice_authority::{AuthorityConfig, SignerConfig};
use sluice_ca::{LifetimeLimits, NewKey, RsaBits};
use sluice_model::{CompliancePolicy, Text};
use sluice_tls::{TlsFiles, TlsVersions};

use crate::ConfigError;
use crate::security_args::SecurityArgs;
use crate::values::{Variables, comma_separated};

/// `EXTERNAL_CA`: workload certificates come from a signer of the Kubernetes API.
const KUBERNETES_RA: &str = "ISTIOD_RA_KUBERNETES_API";
/// Root certificates of that signer if an operator mounts them; else those of the cluster are used.
const EXTERNAL_ROOTS: &str = "./etc/external-ca-cert/root-cert.pem";
const CLUSTER_ROOTS: &str = "./var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
const GRACE: &str = "CITADEL_SELF_SIGNED_ROOT_CERT_GRACE_PERIOD_PERCENTILE";

/// Settings of the authority, the secure port, and authentication.
#[derive(Clone, Debug)]
pub struct SecurityConfig {
    /// The certificate authority; `None` with `ENABLE_CA_SERVER=false`.
    pub authority: Option<AuthorityConfig>,
    /// Files of the server certificate; `None` uses an issued one.
    pub files: Option<TlsFiles>,
    /// `PILOT_CERT_PROVIDER`: the issuer of the server certificate.
    pub provider: CertProvider,
    /// `ISTIOD_CUSTOM_HOST`: additional DNS names of the server.
    pub custom_hosts: Vec<String>,
    /// Versions of TLS and cipher suites.
    pub versions: TlsVersions,
    /// `COMPLIANCE_POLICY`: limits all TLS.
    pub compliance: Option<CompliancePolicy>,
    /// Verification of tokens.
    pub tokens: TokenConfig,
    /// `EXTERNAL_CA=ISTIOD_RA_KUBERNETES_API` with `K8S_SIGNER` and `CERT_SIGNER_DOMAIN`: the signer of workload certificates,
    /// instead of the authority.
    pub workload_signer: Option<SignerConfig>,
    /// `CA_TRUSTED_NODE_ACCOUNTS`: service accounts (namespace, name) of node proxies, which request certificates for
    /// the pods of their node.
    pub node_accounts: BTreeSet<(Text, Text)>,
}

/// The issuer of the server certificate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CertProvider {
    /// The authority.
    Authority,
    /// A signer of the Kubernetes API, by its full name.
    Signer(String),
    /// No issuer: files are mounted, or the secure port is not served.
    None,
}

impl CertProvider {
    fn parse(text: &str) -> Result<Self, ConfigError> {
        match text {
            "istiod" => Ok(Self::Authority),
            "none" | "custom" => Ok(Self::None),
            other => match other.strip_prefix("k8s.io/").filter(|signer| is_signer(signer)) {
                Some(signer) => Ok(Self::Signer(signer.to_owned())),
                None => {
                    let reason = format!(
                        "{other:?} is not supported: use istiod, k8s.io/DOMAIN/NAME (a signer of the Kubernetes API), custom \
                         (mounted files) or none"
                    );
                    Err(ConfigError { flag: "PILOT_CERT_PROVIDER", reason })
                }
            },
        }
    }
}

/// Whether a text is `DOMAIN/NAME`, as names of signers in Kubernetes.
fn is_signer(text: &str) -> bool {
    text.split_once('/').is_some_and(|(domain, name)| !domain.is_empty() && !name.is_empty() && !name.contains('/'))
}

/// Verification of tokens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TokenConfig {
    /// `TOKEN_AUDIENCES`: accepted audiences.
    pub audiences: Vec<String>,
    /// `JWT_RULE`: an issuer whose tokens are verified with its keys.
    pub rule: Option<JwtRule>,
    /// `--tokenKeys`: key files that verify tokens of service accounts without a Kubernetes API, by
    /// cluster; the local cluster has an empty name.
    pub keys: BTreeMap<String, PathBuf>,
    /// `--tokenIssuer`: the issuer of the tokens; empty accepts any issuer with a key.
    pub issuer: String,
}

/// An issuer of tokens.
#[derive(Clone, Debug, Eq, PartialEq, serde::Deserialize)]
pub struct JwtRule {
    /// Its name.
    pub issuer: String,
    /// URL of its keys; empty uses OIDC discovery.
    #[serde(default, alias = "jwksUri")]
    pub jwks_uri: String,
    /// Accepted audiences.
    #[serde(default)]
    pub audiences: Vec<String>,
}

impl SecurityConfig {
    pub(crate) fn new(args: &SecurityArgs, variables: &mut Variables<'_>) -> Result<Self, ConfigError> {
        let workload_signer = match variables.text("EXTERNAL_CA").as_deref() {
            None => None,
            Some(KUBERNETES_RA) => Some(workload_signer(variables)),
            Some(other) => {
                let reason =
                    format!("{other:?} is not supported: use {KUBERNETES_RA}, or unset it for the built-in authority");
                return Err(ConfigError { flag: "EXTERNAL_CA", reason });
            }
        };
        if let Some(signer) = &workload_signer
            && signer.signer.is_empty()
            && signer.domain.is_empty()
        {
            let reason = format!("is {KUBERNETES_RA}, which needs K8S_SIGNER or CERT_SIGNER_DOMAIN");
            return Err(ConfigError { flag: "EXTERNAL_CA", reason });
        }
        let provider = CertProvider::parse(&variables.text_or("PILOT_CERT_PROVIDER", "istiod"))?;
        let default = AuthorityConfig::default();
        let authority = AuthorityConfig {
            directory: variables.text("ROOT_CA_DIR").map_or(default.directory, PathBuf::from),
            create: args.create_ca,
            root_key: root_key(variables)?,
            root_lifetime: variables.duration("CITADEL_SELF_SIGNED_CA_CERT_TTL", default.root_lifetime),
            check_interval: variables.duration("CITADEL_SELF_SIGNED_ROOT_CERT_CHECK_INTERVAL", default.check_interval),
            grace_percent: match variables.text(GRACE) {
                None => default.grace_percent,
                Some(text) => text.parse().ok().filter(|percent| *percent <= 100).ok_or_else(|| ConfigError {
                    flag: GRACE,
                    reason: format!("{text:?} is not a number from 0 to 100"),
                })?,
            },
            jitter: variables.flag("CITADEL_ENABLE_JITTER_FOR_ROOT_CERT_ROTATOR", default.jitter),
            in_cacerts: variables.flag("USE_CACERTS_FOR_SELF_SIGNED_CA", default.in_cacerts),
            remote_certs: variables.flag("USE_REMOTE_CERTS", default.remote_certs),
            multi_root: variables.flag("ISTIO_MULTIROOT_MESH", default.multi_root),
            revocations: variables.flag("PILOT_ENABLE_CA_CRL", default.revocations),
            roots_config_map: variables.text("PILOT_CA_CERT_CONFIGMAP").unwrap_or(default.roots_config_map),
            revoked_config_map: variables.text("PILOT_CRL_CONFIGMAP").unwrap_or(default.revoked_config_map),
            cluster_trust_bundle: variables.flag("ENABLE_CLUSTER_TRUST_BUNDLE_API", false),
            lifetimes: LifetimeLimits {
                default: variables.duration("DEFAULT_WORKLOAD_CERT_TTL", default.lifetimes.default),
                max: variables.duration("MAX_WORKLOAD_CERT_TTL", default.lifetimes.max),
            },
        };
        let compliance = variables.text("COMPLIANCE_POLICY").map(|name| compliance(&name)).transpose()?;
        let rule = match variables.text("JWT_RULE") {
            None => None,
            Some(text) => Some(serde_json::from_str(&text).map_err(|error| ConfigError {
                flag: "JWT_RULE",
                reason: format!("is not JSON with issuer, jwks_uri and audiences: {error}"),
            })?),
        };
        let mut node_accounts = BTreeSet::new();
        for account in variables.list::<String, Vec<_>>("CA_TRUSTED_NODE_ACCOUNTS") {
            match account.split_once('/') {
                Some((namespace, name)) => drop(node_accounts.insert((namespace.into(), name.into()))),
                None => {
                    variables
                        .fail("CA_TRUSTED_NODE_ACCOUNTS", format!("{account:?} is not of the form NAMESPACE/NAME"));
                }
            }
        }
        Ok(Self {
            authority: variables.flag("ENABLE_CA_SERVER", true).then_some(authority),
            files: TlsFiles::find(&args.tls_cert_file, &args.tls_key_file, &args.ca_cert_file)?,
            provider,
            workload_signer,
            custom_hosts: variables.list("ISTIOD_CUSTOM_HOST"),
            versions: TlsVersions::parse(&args.tls_min_version, &args.tls_cipher_suites)?.limited_by(compliance),
            compliance,
            tokens: TokenConfig {
                audiences: comma_separated(&variables.text_or("TOKEN_AUDIENCES", "istio-ca"))
                    .map(str::to_owned)
                    .collect(),
                rule,
                keys: args.token_keys.iter().filter(|pair| !pair.is_empty()).map(|pair| token_keys(pair)).collect(),
                issuer: args.token_issuer.clone(),
            },
            node_accounts,
        })
    }
}

/// The key of a generated root, if set.
fn root_key(variables: &Variables<'_>) -> Result<Option<NewKey>, ConfigError> {
    const SIZE: &str = "CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE";
    const CURVE: &str = "SLUICE_SELF_SIGNED_CA_ECC_CURVE";
    let (flag, reason) = match (variables.text(SIZE), variables.text(CURVE).as_deref()) {
        (None, None) => return Ok(None),
        (None, Some("P256")) => return Ok(Some(NewKey::EcdsaP256)),
        (None, Some("P384")) => return Ok(Some(NewKey::EcdsaP384)),
        (None, Some(other)) => (CURVE, format!("{other:?} is not supported: use P256 or P384")),
        (Some(_), Some(_)) => (CURVE, format!("conflicts with {SIZE}: set one of them, the root key is EC or RSA")),
        (Some(text), None) => match text.parse().ok().and_then(RsaBits::new) {
            Some(bits) => return Ok(Some(NewKey::Rsa(bits))),
            None => (
                SIZE,
                format!("{text:?} is not supported: use {}", RsaBits::ALL.map(|bits| bits.to_string()).join(", ")),
            ),
        },
    };
    Err(ConfigError { flag, reason })
}

/// The signer of the Kubernetes API, and the roots that verify its certificates, if a file has them.
fn workload_signer(variables: &Variables<'_>) -> SignerConfig {
    let (signer, domain) = (variables.text_or("K8S_SIGNER", ""), variables.text_or("CERT_SIGNER_DOMAIN", ""));
    let read = |file: &str| std::fs::read_to_string(file).ok().map(|text| (text, file.to_owned()));
    // With a domain there are several signers, and each has separate roots.
    let of_cluster = || domain.is_empty().then(|| read(CLUSTER_ROOTS)).flatten();
    let (roots, roots_file) = read(EXTERNAL_ROOTS).or_else(of_cluster).unzip();
    // The file may be mounted later.
    let roots_file = Some(roots_file.unwrap_or_else(|| EXTERNAL_ROOTS.to_owned()).into());
    SignerConfig { signer, domain, roots, roots_file, ..SignerConfig::default() }
}

/// `FILE` or `ID=FILE`.
fn token_keys(text: &str) -> (String, PathBuf) {
    match text.split_once('=') {
        Some((cluster, file)) if !cluster.contains('/') => (cluster.to_owned(), PathBuf::from(file)),
        _ => (String::new(), PathBuf::from(text)),
    }
}

fn compliance(name: &str) -> Result<CompliancePolicy, ConfigError> {
    CompliancePolicy::named(name).ok_or_else(|| {
        let known = CompliancePolicy::NAMES.map(|(known, _)| known).join(", ");
        ConfigError { flag: "COMPLIANCE_POLICY", reason: format!("{name:?} is not supported: use {known}") }
    })
}
