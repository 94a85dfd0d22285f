//! Settings of the agent, fixed at start-up.

mod wasm;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use sluice_crypto::{CompliancePolicy, Roots};
use sluice_proto::istio::mesh::v1alpha1::{AuthenticationPolicy, ProxyConfig};
use sluice_variables::parse_bool;

use crate::args::{ProxyArgs, Role};
use crate::environment::Environment;
use crate::pod::PodMetadata;
use crate::proxy_config::{self, ProxyConfigSource, to_duration};
pub(crate) use wasm::WasmSettings;

/// Directory of the SDS socket.
pub(crate) const IDENTITY_DIRECTORY: &str = "./var/run/secrets/workload-spiffe-uds";
/// Name of the SDS socket that the agent serves.
pub(crate) const IDENTITY_SOCKET: &str = "socket";
/// Socket on which the agent serves secrets in files if another server has the SDS socket.
pub(crate) const FILES_SOCKET: &str = "./var/run/secrets/credential-uds/files-socket";
/// Socket on which another SDS server may provide credentials of gateways.
pub(crate) const CREDENTIAL_SOCKET: &str = "./var/run/secrets/credential-uds/socket";
const TOKEN_FILE: &str = "./var/run/secrets/tokens/istio-token";
/// File of the authority's certificate revocation lists.
const CRL_FILE: &str = "./var/run/secrets/istio/crl/ca-crl.pem";
const GRPC_BOOTSTRAP_FILE: &str = "etc/istio/proxy/grpc-bootstrap.json";
const MESH_ROOTS_FILE: &str = "./var/run/secrets/istio/root-cert.pem";

/// All settings.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) role: Role,
    pub(crate) pod_name: String,
    pub(crate) namespace: String,
    pub(crate) service_account: String,
    pub(crate) domain: String,
    /// `INSTANCE_IP` first, then those of the network interfaces.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) pod: PodMetadata,
    pub(crate) proxy: ProxyConfig,
    pub(crate) ports: AgentPorts,
    /// The agent starts Envoy, unless `DISABLE_ENVOY` is set.
    pub(crate) runs_envoy: bool,
    pub(crate) envoy: EnvoySettings,
    /// File of the bootstrap for gRPC libraries; `None` if it is disabled by an empty `GRPC_XDS_BOOTSTRAP`.
    pub(crate) grpc_bootstrap: Option<PathBuf>,
    pub(crate) control_plane: ControlPlane,
    pub(crate) identity: IdentitySettings,
    pub(crate) dns: Option<DnsSettings>,
    pub(crate) drain: DrainSettings,
    pub(crate) probes: ProbeSettings,
    pub(crate) wasm: WasmSettings,
    /// `COMPLIANCE_POLICY`: limits TLS of the agent and of Envoy towards the control plane.
    pub(crate) compliance: Option<CompliancePolicy>,
    pub(crate) dual_stack: bool,
    pub(crate) delta: bool,
}

/// Ports on this machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct AgentPorts {
    /// Envoy's admin interface.
    pub(crate) admin: u16,
    /// The agent's own HTTP server; 0 for none.
    pub(crate) status: u16,
    /// Envoy's listener for readiness.
    pub(crate) envoy_status: u16,
    /// Envoy's listener for its metrics.
    pub(crate) envoy_prometheus: u16,
    /// Debug pages of the control plane; `None` if they are disabled.
    pub(crate) debug: Option<u16>,
}

/// Settings of the Envoy process.
#[derive(Clone, Debug)]
pub(crate) struct EnvoySettings {
    pub(crate) log_level: String,
    pub(crate) component_log_level: String,
    pub(crate) log_as_json: bool,
    pub(crate) outlier_log_path: String,
    pub(crate) skip_deprecated_logs: bool,
    pub(crate) core_dump: bool,
    pub(crate) bootstrap_override: Option<PathBuf>,
    pub(crate) host_ip: String,
    pub(crate) concurrency: u32,
}

/// A server of the mesh: its address, its verification, and how the agent authenticates to it.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    /// `HOST:PORT`.
    pub(crate) address: String,
    /// The name that its certificate must have.
    pub(crate) server_name: String,
    /// `None` for plaintext (`controlPlaneAuthPolicy: NONE` in the ProxyConfig). No token is sent then.
    pub(crate) roots: Option<Roots>,
    /// Files of the client certificate and its key.
    pub(crate) client_certificate: Option<(PathBuf, PathBuf)>,
    /// Compliance policy of TLS.
    pub(crate) policy: Option<CompliancePolicy>,
    /// File with the token.
    pub(crate) token_file: PathBuf,
    /// Additional metadata of requests, with the cluster id.
    pub(crate) headers: BTreeMap<String, String>,
}

/// The xDS server.
#[derive(Clone, Debug)]
pub(crate) struct ControlPlane {
    pub(crate) upstream: Upstream,
    /// Socket of the agent's xDS proxy.
    pub(crate) socket: PathBuf,
    /// The agent subscribes to the mesh's ProxyConfig, for its roots.
    pub(crate) subscribe_proxy_config: bool,
}

/// Settings of the workload's certificate.
#[derive(Clone, Debug)]
pub(crate) struct IdentitySettings {
    /// The certificate authority; `None` if the certificate comes from files.
    pub(crate) authority: Option<Upstream>,
    pub(crate) spiffe_id: String,
    pub(crate) cert_signer: String,
    pub(crate) key: KeyKind,
    pub(crate) lifetime: Duration,
    pub(crate) grace_ratio: f64,
    pub(crate) grace_jitter: f64,
    pub(crate) debounce: Duration,
    /// Files of certificate, key and roots. They are used if they exist.
    pub(crate) files: KeyFiles,
    /// File of certificate revocation lists, if they are enabled.
    pub(crate) crl_file: Option<PathBuf>,
    pub(crate) output: Option<CertificateOutput>,
    pub(crate) socket_name: String,
}

/// Kind of the workload's key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum KeyKind {
    Rsa2048,
    Rsa3072,
    Rsa4096,
    P256,
    P384,
}

/// Files of a certificate, its key, and roots.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct KeyFiles {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) roots: PathBuf,
}

impl KeyFiles {
    fn in_directory(directory: impl AsRef<Path>) -> Self {
        let file = |name: &str| directory.as_ref().join(name);
        Self { chain: file("cert-chain.pem"), key: file("key.pem"), roots: file("root-cert.pem") }
    }
}

/// Where the workload's certificate, its key and the roots are written (`OUTPUT_CERTS`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct CertificateOutput {
    pub(crate) directory: PathBuf,
    /// Permissions of the files.
    pub(crate) mode: u32,
}

impl CertificateOutput {
    pub(crate) fn files(&self) -> KeyFiles {
        KeyFiles::in_directory(&self.directory)
    }
}

/// Settings of the DNS proxy.
#[derive(Clone, Debug)]
pub(crate) struct DnsSettings {
    pub(crate) address: String,
    pub(crate) parallel: bool,
    pub(crate) timeout: Duration,
}

/// How Envoy is drained before it is terminated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrainSettings {
    pub(crate) duration: Duration,
    pub(crate) minimum: Duration,
    pub(crate) until_no_connections: bool,
}

/// Settings of the status server.
#[derive(Clone, Debug)]
pub(crate) struct ProbeSettings {
    /// `ISTIO_KUBE_APP_PROBERS`.
    pub(crate) app_probers: Option<String>,
    /// `ISTIO_PROMETHEUS_ANNOTATIONS`.
    pub(crate) prometheus: Option<String>,
    pub(crate) to_localhost: bool,
    /// Probes over TLS offer HTTP/2.
    pub(crate) http2: bool,
    pub(crate) metrics_only_local: bool,
}

impl Settings {
    /// Reads the command line, the environment and the files below `root`.
    ///
    /// # Errors
    /// There is no namespace, the ProxyConfig is malformed, or settings contradict each other.
    pub(crate) fn new(
        args: &ProxyArgs,
        log_as_json: bool,
        environment: &Environment,
        interfaces: &[IpAddr],
        root: &Path,
        warnings: &mut Vec<String>,
    ) -> Result<Self> {
        let pod = PodMetadata::read(root, warnings);
        let proxy = read_proxy_config(args, environment, &pod, root, warnings)?;
        let text = |name: &str| environment.text(name).unwrap_or_default().to_owned();
        let namespace = text("POD_NAMESPACE");
        ensure!(
            !namespace.is_empty(),
            "variable POD_NAMESPACE is not set: the namespace of the pod is a part of the identity that the agent requests"
        );
        let domain = match args.domain.is_empty() {
            true => format!("{namespace}.svc.cluster.local"),
            false => args.domain.clone(),
        };
        let mut addresses: Vec<IpAddr> =
            environment.text("INSTANCE_IP").and_then(|ip| ip.parse().ok()).into_iter().collect();
        for address in interfaces {
            if !addresses.contains(address) {
                addresses.push(*address);
            }
        }
        if addresses.is_empty() {
            addresses = vec![IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])];
        }
        let variable_or_metadata = |name: &str| {
            environment.text(name).map(ToOwned::to_owned).or_else(|| {
                // The injector sets these variables in containers. For other workloads they are in the ProxyConfig.
                proxy.proxy_metadata.get(name).cloned()
            })
        };
        let meta_flag = |name: &str| variable_or_metadata(name).as_deref().and_then(parse_bool).unwrap_or(false);
        let dns = ((meta_flag("ISTIO_META_DNS_CAPTURE") && args.role == Role::Sidecar)
            || meta_flag("ISTIO_META_ENABLE_DNS_SERVER"))
        .then(|| DnsSettings {
            address: environment.text("DNS_PROXY_ADDR").unwrap_or("localhost:15053").to_owned(),
            parallel: environment.flag("DNS_FORWARD_PARALLEL", false),
            timeout: environment.duration("DNS_FORWARD_TIMEOUT", Duration::from_secs(5)),
        });
        let compliance = read_compliance(environment)?;
        let cluster = variable_or_metadata("ISTIO_META_CLUSTER_ID").unwrap_or_default();
        let upstreams = UpstreamBuilder { environment, proxy: &proxy, root, cluster, policy: compliance };
        let control_plane = ControlPlane {
            upstream: upstreams.control_plane()?,
            socket: Path::new(&proxy.config_path).join("XDS"),
            subscribe_proxy_config: environment.flag("PROXY_CONFIG_XDS_AGENT", false),
        };
        let service_account = text("SERVICE_ACCOUNT");
        let identity = read_identity(&upstreams, &namespace, &service_account, &variable_or_metadata, warnings)?;
        let port = |value: i32, what: &str| match u16::try_from(value) {
            Ok(port) => Ok(port),
            Err(_) => bail!("ProxyConfig: {what}: {value} is not a port (0 to 65535)"),
        };
        let ports = AgentPorts {
            admin: port(proxy.proxy_admin_port, "proxyAdminPort")?,
            status: port(proxy.status_port, "statusPort")?,
            envoy_status: environment.number("ENVOY_STATUS_PORT", 15021),
            envoy_prometheus: environment.number("ENVOY_PROMETHEUS_PORT", 15090),
            debug: environment
                .flag("PROXY_XDS_DEBUG_VIA_AGENT", true)
                .then(|| environment.number("PROXY_XDS_DEBUG_VIA_AGENT_PORT", 15004)),
        };
        let runs_envoy = !environment.flag("DISABLE_ENVOY", false);
        ensure!(
            !runs_envoy || ports.admin != 0,
            "ProxyConfig: proxyAdminPort must not be 0: the agent needs Envoy's admin interface"
        );
        let limit = environment.number("ISTIO_CPU_LIMIT", 0_u32);
        let configured = proxy.concurrency.as_ref().and_then(|threads| u32::try_from(threads.value).ok());
        let envoy = EnvoySettings {
            log_level: args.proxy_log_level.clone(),
            component_log_level: args.proxy_component_log_level.clone(),
            log_as_json,
            outlier_log_path: args.outlier_log_path.clone(),
            skip_deprecated_logs: environment.flag("ENVOY_SKIP_DEPRECATED_LOGS", true),
            core_dump: environment.flag("ISTIO_ENVOY_ENABLE_CORE_DUMP", false),
            bootstrap_override: environment.text("ISTIO_BOOTSTRAP_OVERRIDE").map(PathBuf::from),
            host_ip: text("HOST_IP"),
            concurrency: if args.concurrency > 0 { args.concurrency } else { configured.unwrap_or(limit) },
        };
        let configured = to_duration(proxy.termination_drain_duration.as_ref()).unwrap_or(Duration::from_secs(5));
        let duration = match environment.text("TERMINATION_DRAIN_DURATION_SECONDS") {
            Some(_) => {
                Duration::from_secs(environment.number("TERMINATION_DRAIN_DURATION_SECONDS", configured.as_secs()))
            }
            None => configured,
        };
        let drain = DrainSettings {
            duration,
            minimum: environment.duration("MINIMUM_DRAIN_DURATION", Duration::from_secs(5)),
            until_no_connections: environment.flag("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", false),
        };
        let probes = ProbeSettings {
            app_probers: environment.text("ISTIO_KUBE_APP_PROBERS").map(ToOwned::to_owned),
            prometheus: environment.text("ISTIO_PROMETHEUS_ANNOTATIONS").map(ToOwned::to_owned),
            to_localhost: environment.flag("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", false),
            http2: environment.flag("ISTIO_ENABLE_HTTP2_PROBING", true),
            metrics_only_local: environment.flag("METRICS_LOCALHOST_ACCESS_ONLY", false)
                || proxy.proxy_metadata.get("METRICS_LOCALHOST_ACCESS_ONLY").is_some_and(|value| value == "true"),
        };
        Ok(Self {
            role: args.role,
            pod_name: text("POD_NAME"),
            namespace,
            service_account,
            domain,
            addresses,
            pod,
            ports,
            runs_envoy,
            envoy,
            grpc_bootstrap: match environment.value("GRPC_XDS_BOOTSTRAP") {
                None => Some(GRPC_BOOTSTRAP_FILE.into()),
                Some("") => None,
                Some(file) => Some(file.into()),
            },
            control_plane,
            identity,
            dns,
            drain,
            probes,
            wasm: WasmSettings::new(environment, warnings),
            compliance,
            dual_stack: environment.flag("ISTIO_DUAL_STACK", false),
            delta: environment.flag("ISTIO_DELTA_XDS", true),
            proxy,
        })
    }

    /// `TYPE~ADDRESS~NAME.NAMESPACE~DOMAIN`.
    pub(crate) fn node_id(&self) -> String {
        let address = self.addresses.first().map(ToString::to_string).unwrap_or_default();
        format!("{}~{address}~{}.{}~{}", self.role.name(), self.pod_name, self.namespace, self.domain)
    }

    /// The loopback address by which the agent and Envoy reach each other.
    pub(crate) fn loopback(&self) -> IpAddr {
        match self.addresses.iter().all(IpAddr::is_ipv6) {
            true => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
            false => IpAddr::from([127, 0, 0, 1]),
        }
    }
}

fn read_proxy_config(
    args: &ProxyArgs,
    environment: &Environment,
    pod: &PodMetadata,
    root: &Path,
    warnings: &mut Vec<String>,
) -> Result<ProxyConfig> {
    let file = match std::fs::read_to_string(root.join(&args.mesh_config)) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => bail!("read {}: {error}", args.mesh_config.display()),
    };
    let variable = environment.text("PROXY_CONFIG").unwrap_or_default();
    let annotation = pod.annotation("proxy.istio.io/config").unwrap_or_default();
    let layers = [
        ProxyConfigSource { name: "the mesh config", text: &file, field: Some("defaultConfig") },
        ProxyConfigSource { name: "PROXY_CONFIG", text: variable, field: None },
        ProxyConfigSource { name: "annotation proxy.istio.io/config", text: annotation, field: None },
    ];
    let mut config = proxy_config::merge(&layers, warnings)?;
    use sluice_proto::istio::mesh::v1alpha1::proxy_config::ClusterName;
    // The defaults have a name. As in the reference, the flag is used if a source makes it empty.
    if matches!(&config.cluster_name, Some(ClusterName::ServiceCluster(name)) if name.is_empty()) {
        config.cluster_name = Some(ClusterName::ServiceCluster(args.service_cluster.clone()));
    }
    if let Some(address) = pod.annotation("sidecar.istio.io/discoveryAddress") {
        config.discovery_address = address.to_owned();
    }
    if let Some(port) = pod.annotation("status.sidecar.istio.io/port") {
        match port.parse() {
            Ok(port) => config.status_port = port,
            Err(_) => {
                warnings.push(format!("annotation status.sidecar.istio.io/port: {port:?} is not a port and is ignored"))
            }
        }
    }
    Ok(config)
}

/// Builds the settings of servers.
struct UpstreamBuilder<'a> {
    environment: &'a Environment,
    proxy: &'a ProxyConfig,
    root: &'a Path,
    cluster: String,
    policy: Option<CompliancePolicy>,
}

impl UpstreamBuilder<'_> {
    fn is_plaintext(&self) -> bool {
        self.proxy.control_plane_auth_policy == AuthenticationPolicy::None as i32
    }

    fn control_plane(&self) -> Result<Upstream> {
        let address = self.proxy.discovery_address.clone();
        let roots = match (self.is_plaintext(), self.environment.text("XDS_ROOT_CA")) {
            (true, _) => None,
            (false, Some("SYSTEM")) => Some(Roots::System),
            (false, Some(file)) => Some(Roots::File(file.into())),
            (false, None) if self.root.join("./etc/certs/root-cert.pem").exists() => {
                Some(Roots::File("./etc/certs/root-cert.pem".into()))
            }
            (false, None) => Some(Roots::File(self.default_roots())),
        };
        let server_name = self.server_name(&address)?;
        let client_certificate = self.provisioned().or_else(|| {
            let metadata = |name: &str| self.proxy.proxy_metadata.get(name).map(PathBuf::from);
            let files = self.environment.flag("FILE_MOUNTED_CERTS", false);
            files.then(|| {
                Some((metadata("ISTIO_META_TLS_CLIENT_CERT_CHAIN")?, metadata("ISTIO_META_TLS_CLIENT_KEY")?))
            })?
        });
        Ok(Upstream {
            address,
            server_name,
            roots,
            client_certificate,
            policy: self.policy,
            token_file: TOKEN_FILE.into(),
            headers: self.headers("XDS_HEADER_"),
        })
    }

    fn authority(&self) -> Result<Option<Upstream>> {
        let named = self.environment.text("CA_ADDR");
        if named.is_none() && self.is_plaintext() {
            return Ok(None);
        }
        let address = named.unwrap_or(&self.proxy.discovery_address).to_owned();
        let server_name = match named {
            Some(_) => server_name_of(&address).context("CA_ADDR")?,
            None => self.server_name(&address)?,
        };
        let roots = match self.environment.text("CA_ROOT_CA") {
            Some("SYSTEM") => Roots::System,
            Some(file) => Roots::File(file.into()),
            None => Roots::File(self.default_roots()),
        };
        Ok(Some(Upstream {
            address,
            server_name,
            roots: Some(roots),
            client_certificate: self.provisioned(),
            policy: self.policy,
            token_file: TOKEN_FILE.into(),
            headers: self.headers("CA_HEADER_"),
        }))
    }

    fn headers(&self, prefix: &str) -> BTreeMap<String, String> {
        let variables = self.environment.with_prefix(prefix);
        let mut headers: BTreeMap<_, _> =
            variables.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        headers.insert("clusterid".to_owned(), self.cluster.clone());
        headers
    }

    fn provisioned(&self) -> Option<(PathBuf, PathBuf)> {
        let directory = self.environment.text("PROV_CERT")?;
        let files = KeyFiles::in_directory(directory);
        Some((files.chain, files.key))
    }

    fn default_roots(&self) -> PathBuf {
        if let Some(directory) = self.environment.text("PROV_CERT") {
            return KeyFiles::in_directory(directory).roots;
        }
        if self.environment.flag("FILE_MOUNTED_CERTS", false)
            && let Some(file) = self.proxy.proxy_metadata.get("ISTIO_META_TLS_CLIENT_ROOT_CERT")
        {
            return file.into();
        }
        MESH_ROOTS_FILE.into()
    }

    /// The name of the control plane's certificate; `address` is the discovery address.
    fn server_name(&self, address: &str) -> Result<String> {
        match self.environment.text("ISTIOD_SAN") {
            Some(name) => Ok(name.to_owned()),
            None => server_name_of(address).context("ProxyConfig: discoveryAddress"),
        }
    }
}

/// The host of `HOST:PORT`. For `localhost`, which is a forwarded port, it is the control plane's usual name.
fn server_name_of(address: &str) -> Result<String> {
    let Some((host, _)) = host_and_port(address) else { bail!("{address:?} is not HOST:PORT") };
    ensure!(!host.is_empty(), "{address:?} has no host");
    Ok(if host == "localhost" { "istiod.istio-system.svc".to_owned() } else { host.to_owned() })
}

/// Host and port of `HOST:PORT`, without the brackets of an IPv6 address.
pub(crate) fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?))
}

/// The compliance policy. An unknown one is an error, since without it TLS would not be limited.
fn read_compliance(environment: &Environment) -> Result<Option<CompliancePolicy>> {
    let Some(name) = environment.text("COMPLIANCE_POLICY") else { return Ok(None) };
    let known = CompliancePolicy::NAMES.map(|(known, _)| known).join(", ");
    ensure!(CompliancePolicy::named(name).is_some(), "COMPLIANCE_POLICY: {name:?} is unknown; accepted are {known}");
    Ok(CompliancePolicy::named(name))
}

fn read_key_kind(environment: &Environment, warnings: &mut Vec<String>) -> Result<KeyKind> {
    let curve = environment.text("ECC_CURVE");
    let Some(algorithm) = environment.text("ECC_SIGNATURE_ALGORITHM") else {
        if curve.is_some() {
            warnings.push("variable ECC_CURVE is ignored: it needs ECC_SIGNATURE_ALGORITHM=ECDSA".to_owned());
        }
        return Ok(match environment.number("WORKLOAD_RSA_KEY_SIZE", 2048_u32) {
            2048 => KeyKind::Rsa2048,
            3072 => KeyKind::Rsa3072,
            4096 => KeyKind::Rsa4096,
            other => bail!("WORKLOAD_RSA_KEY_SIZE: {other} is not accepted; accepted are 2048, 3072 and 4096"),
        });
    };
    if algorithm != "ECDSA" {
        warnings.push("variable ECC_SIGNATURE_ALGORITHM: only ECDSA is accepted; ECDSA is used".to_owned());
    }
    Ok(match curve {
        None | Some("P256") => KeyKind::P256,
        Some("P384") => KeyKind::P384,
        Some(other) => {
            warnings.push(format!(
                "variable ECC_CURVE: {other:?} is not accepted; accepted are P256 and P384; P256 is used"
            ));
            KeyKind::P256
        }
    })
}

fn read_identity(
    upstreams: &UpstreamBuilder<'_>,
    namespace: &str,
    service_account: &str,
    variable_or_metadata: &impl Fn(&str) -> Option<String>,
    warnings: &mut Vec<String>,
) -> Result<IdentitySettings> {
    let environment = upstreams.environment;
    let mounted = "./var/run/secrets/workload-spiffe-credentials";
    let is_mounted = [KeyFiles::in_directory(mounted)].iter().all(|files| {
        [&files.chain, &files.key, &files.roots].into_iter().all(|file| upstreams.root.join(file).exists())
    });
    let only_files = environment.flag("FILE_MOUNTED_CERTS", false) || is_mounted;
    ensure!(
        !(environment.flag("FILE_MOUNTED_CERTS", false) && environment.text("PROV_CERT").is_some()),
        "PROV_CERT and FILE_MOUNTED_CERTS are mutually exclusive"
    );
    let socket_name = environment.text("WORKLOAD_IDENTITY_SOCKET_FILE").unwrap_or(IDENTITY_SOCKET).to_owned();
    ensure!(
        !socket_name.contains('/') && socket_name != "." && socket_name != "..",
        "WORKLOAD_IDENTITY_SOCKET_FILE: {socket_name:?} must be a file name, not a path"
    );
    let trust_domain = environment.text("TRUST_DOMAIN").unwrap_or("cluster.local");
    Ok(IdentitySettings {
        authority: if only_files { None } else { upstreams.authority()? },
        spiffe_id: format!("spiffe://{trust_domain}/ns/{namespace}/sa/{service_account}"),
        cert_signer: variable_or_metadata("ISTIO_META_CERT_SIGNER").unwrap_or_default(),
        key: read_key_kind(environment, warnings)?,
        lifetime: environment.duration("SECRET_TTL", Duration::from_secs(24 * 3600)),
        grace_ratio: environment.number("SECRET_GRACE_PERIOD_RATIO", 0.5),
        grace_jitter: environment.number("SECRET_GRACE_PERIOD_RATIO_JITTER", 0.01),
        debounce: environment.duration("FILE_DEBOUNCE_DURATION", Duration::from_millis(100)),
        files: KeyFiles::in_directory(if is_mounted { mounted } else { "./etc/certs" }),
        crl_file: environment.flag("PILOT_ENABLE_CA_CRL", false).then(|| CRL_FILE.into()),
        output: environment.text("OUTPUT_CERTS").map(|directory| CertificateOutput {
            directory: directory.into(),
            // In a pod, the containers that mount the directory may have other users, as in the reference.
            mode: if environment.text("KUBERNETES_SERVICE_HOST").is_some() { 0o644 } else { 0o600 },
        }),
        socket_name,
    })
}

#[cfg(test)]
pub(crate) mod tests;
