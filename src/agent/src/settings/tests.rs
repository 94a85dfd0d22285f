mod effects;

use clap::Parser as _;

use super::*;
use crate::args::{Command, CommandLine};
use crate::environment::environment;

/// Settings of `proxy ARGUMENTS` with these variables, in a new directory. The namespace is `shop` unless they name one.
pub(crate) fn settings(arguments: &str, variables: &[(&str, &str)]) -> Result<Settings> {
    let directory = tempfile::tempdir().expect("a directory");
    settings_in(directory.path(), arguments, variables)
}

fn settings_in(root: &Path, arguments: &str, variables: &[(&str, &str)]) -> Result<Settings> {
    let line = ["sluice-agent", "proxy"].into_iter().chain(arguments.split_whitespace());
    let Command::Proxy(args) = CommandLine::parse_from(line).command else { panic!("not proxy") };
    let mut warnings = Vec::new();
    Settings::new(
        &args,
        false,
        &environment(&[&[("POD_NAMESPACE", "shop")][..], variables].concat()),
        &["10.1.1.1".parse().expect("an address")],
        root,
        &mut warnings,
    )
}

const POD: &[(&str, &str)] =
    &[("POD_NAME", "tea-1"), ("POD_NAMESPACE", "shop"), ("INSTANCE_IP", "10.0.0.7"), ("SERVICE_ACCOUNT", "tea")];

#[test]
fn pod_has_its_node_id_and_identity_and_uses_tls() {
    let settings = settings("sidecar", POD).expect("settings");
    assert_eq!(settings.node_id(), "sidecar~10.0.0.7~tea-1.shop~shop.svc.cluster.local");
    assert_eq!(settings.identity.spiffe_id, "spiffe://cluster.local/ns/shop/sa/tea");
    let upstream = &settings.control_plane.upstream;
    assert_eq!(
        (upstream.address.as_str(), upstream.server_name.as_str()),
        ("istiod.istio-system.svc:15012", "istiod.istio-system.svc")
    );
    assert_eq!(upstream.roots, Some(Roots::File(MESH_ROOTS_FILE.into())));
    let authority = settings.identity.authority.expect("an authority");
    assert_eq!(authority.address, "istiod.istio-system.svc:15012");
    assert!(authority.roots.is_some());
    assert_eq!(settings.control_plane.socket, Path::new("./etc/istio/proxy/XDS"));
    assert_eq!(settings.drain.duration, Duration::from_secs(5));
    assert!(settings.dns.is_none() && settings.delta);
}

#[test]
fn agent_does_not_start_without_a_namespace() {
    let error = settings("sidecar", &[("POD_NAMESPACE", "")]).expect_err("it does not start").to_string();
    assert!(error.starts_with("variable POD_NAMESPACE is not set"), "{error}");
}

#[test]
fn plaintext_needs_a_setting_and_is_never_used_for_the_authority() {
    let plain = ("PROXY_CONFIG", "{discoveryAddress: 'istiod:15010', controlPlaneAuthPolicy: NONE}");
    let settings = settings_with(&[plain]);
    assert_eq!(settings.control_plane.upstream.roots, None);
    assert!(settings.identity.authority.is_none());
    let settings = settings_with(&[plain, ("CA_ADDR", "ca:15012")]);
    assert_eq!(settings.identity.authority.expect("an authority").roots, Some(Roots::File(MESH_ROOTS_FILE.into())));
    let settings = settings_with(&[("PROXY_CONFIG", "{discoveryAddress: 'istiod:15010'}")]);
    assert!(settings.control_plane.upstream.roots.is_some());
}

fn settings_with(more: &[(&str, &str)]) -> Settings {
    settings("sidecar", &[POD, more].concat()).expect("settings")
}

#[test]
fn server_name_follows_address_or_variable() {
    let settings = settings_with(&[("PROXY_CONFIG", "{discoveryAddress: 'localhost:15012'}")]);
    assert_eq!(settings.control_plane.upstream.server_name, "istiod.istio-system.svc");
    let settings = settings_with(&[("ISTIOD_SAN", "istiod.vm"), ("CA_ADDR", "[fd00::1]:15012")]);
    assert_eq!(settings.control_plane.upstream.server_name, "istiod.vm");
    assert_eq!(settings.identity.authority.expect("an authority").server_name, "fd00::1");
    assert!(super::server_name_of("istiod").is_err());
}

#[test]
fn provisioned_certificates_and_headers_are_used() {
    let more = [
        ("PROV_CERT", "/etc/prov"),
        ("ISTIO_META_CLUSTER_ID", "c1"),
        ("XDS_HEADER_Tenant", "x"),
        ("CA_ROOT_CA", "SYSTEM"),
    ];
    let settings = settings_with(&more);
    let upstream = &settings.control_plane.upstream;
    assert_eq!(upstream.client_certificate, Some(("/etc/prov/cert-chain.pem".into(), "/etc/prov/key.pem".into())));
    assert_eq!(upstream.roots, Some(Roots::File("/etc/prov/root-cert.pem".into())));
    let headers: Vec<_> = upstream.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(headers, [("clusterid", "c1"), ("tenant", "x")]);
    let authority = settings.identity.authority.expect("an authority");
    assert_eq!(authority.roots, Some(Roots::System));
    assert!(!authority.headers.contains_key("tenant"));
}

#[test]
fn roots_headers_and_trust_domain_are_those_of_the_environment() {
    let settings = settings_with(&[
        ("XDS_ROOT_CA", "/etc/roots/xds.pem"),
        ("CA_ROOT_CA", "/etc/roots/ca.pem"),
        ("CA_HEADER_Tenant", "x"),
        ("TRUST_DOMAIN", "other.domain"),
        ("PILOT_ENABLE_CA_CRL", "true"),
    ]);
    let upstream = &settings.control_plane.upstream;
    assert_eq!(upstream.roots, Some(Roots::File("/etc/roots/xds.pem".into())));
    assert!(!upstream.headers.contains_key("tenant"));
    let identity = settings.identity;
    assert_eq!(identity.spiffe_id, "spiffe://other.domain/ns/shop/sa/tea");
    assert_eq!(identity.crl_file.as_deref(), Some(Path::new(CRL_FILE)));
    let authority = identity.authority.expect("an authority");
    assert_eq!(authority.roots, Some(Roots::File("/etc/roots/ca.pem".into())));
    assert_eq!(authority.headers["tenant"], "x");
    let of_system = settings_with(&[("XDS_ROOT_CA", "SYSTEM")]);
    assert_eq!(of_system.control_plane.upstream.roots, Some(Roots::System));
}

#[test]
fn sds_socket_must_be_a_file_name() {
    let error = settings("sidecar", &[("WORKLOAD_IDENTITY_SOCKET_FILE", "../socket")]).expect_err("rejected");
    assert!(error.to_string().contains("not a path"), "{error}");
}

#[test]
fn pod_annotations_take_precedence() {
    let directory = tempfile::tempdir().expect("a directory");
    let pod = directory.path().join("etc/istio/pod");
    std::fs::create_dir_all(&pod).expect("make the directory");
    let annotations = "proxy.istio.io/config=\"terminationDrainDuration: 9s\\nconcurrency: 3\\n\"\n\
                       sidecar.istio.io/discoveryAddress=\"other:1\"\n";
    std::fs::write(pod.join("annotations"), annotations).expect("write annotations");
    let variables =
        [("PROXY_CONFIG", "{terminationDrainDuration: 7s, statusPort: 25020}"), ("ISTIO_META_DNS_CAPTURE", "true")];
    let settings = settings_in(directory.path(), "sidecar", &variables).expect("settings");
    assert_eq!(settings.drain.duration, Duration::from_secs(9));
    assert_eq!(settings.envoy.concurrency, 3);
    assert_eq!(settings.ports.status, 25020);
    assert_eq!(settings.control_plane.upstream.address, "other:1");
    assert_eq!(settings.dns.expect("DNS is captured").address, "localhost:15053");
    let variables = [("TERMINATION_DRAIN_DURATION_SECONDS", "4")];
    assert_eq!(settings_in(directory.path(), "sidecar", &variables).expect("settings").drain.duration.as_secs(), 4);
}

#[test]
fn mounted_certificates_need_no_authority() {
    let settings = settings("sidecar", &[("FILE_MOUNTED_CERTS", "true")]).expect("settings");
    assert!(settings.identity.authority.is_none());
    assert_eq!(settings.identity.files.key, Path::new("./etc/certs/key.pem"));
}

#[test]
fn key_is_rsa_unless_ecdsa_is_configured() {
    let kind = |variables: &[(&str, &str)]| {
        settings("sidecar", &[POD, variables].concat()).map(|settings| settings.identity.key).map_err(|e| e.to_string())
    };
    const ALGORITHM: (&str, &str) = ("ECC_SIGNATURE_ALGORITHM", "ECDSA");
    assert_eq!(kind(&[]), Ok(KeyKind::Rsa2048));
    assert_eq!(kind(&[("WORKLOAD_RSA_KEY_SIZE", "4096")]), Ok(KeyKind::Rsa4096));
    assert_eq!(kind(&[ALGORITHM]), Ok(KeyKind::P256));
    assert_eq!(kind(&[ALGORITHM, ("ECC_CURVE", "P384")]), Ok(KeyKind::P384));
    assert_eq!(kind(&[("ECC_CURVE", "P384")]), Ok(KeyKind::Rsa2048), "a curve alone has no effect");
    let weak = kind(&[("WORKLOAD_RSA_KEY_SIZE", "1024")]).expect_err("weak");
    assert_eq!(weak, "WORKLOAD_RSA_KEY_SIZE: 1024 is not accepted; accepted are 2048, 3072 and 4096");
}

#[test]
fn compliance_policy_applies_to_all_servers_and_an_unknown_one_is_an_error() {
    let read = |policy: &str| settings("sidecar", &[POD, &[("COMPLIANCE_POLICY", policy)]].concat());
    for (name, policy) in CompliancePolicy::NAMES {
        let settings = read(name).expect(name);
        let authority = settings.identity.authority.expect("an authority").policy;
        let policies = [settings.compliance, settings.control_plane.upstream.policy, authority];
        assert_eq!(policies, [Some(policy); 3], "{name}");
    }
    assert_eq!(read("").expect("none").compliance, None);
    let unknown = read("fips").err().map(|error| error.to_string());
    let expected = "COMPLIANCE_POLICY: \"fips\" is unknown; accepted are fips-140-2, fips-140-3, pqc";
    assert_eq!(unknown.as_deref(), Some(expected));
}

#[test]
fn wasm_settings_have_defaults_and_minima() {
    let wasm = settings("sidecar", POD).expect("settings").wasm;
    let times = [wasm.expiry, wasm.purge_interval, wasm.request_timeout].map(|time| time.as_secs());
    assert_eq!((times, wasm.max_attempts, wasm.max_bytes), ([86_400, 3600, 15], 5, 268_435_456));
    assert!(!wasm.is_insecure("r.test:5000") && wasm.blocked.is_empty());
    let variables = [
        POD,
        &[
            ("WASM_INSECURE_REGISTRIES", "r.test:5000, q.test"),
            ("BLOCKED_CIDRS_IN_WASM_FETCH", "10.0.0.0/8,nonsense"),
            ("WASM_HTTP_REQUEST_MAX_RETRIES", "0"),
            ("WASM_PURGE_INTERVAL", "0s"),
        ],
    ];
    let wasm = settings("sidecar", &variables.concat()).expect("settings").wasm;
    assert!(wasm.is_insecure("r.test:5000") && wasm.is_insecure("q.test") && !wasm.is_insecure("r.test"));
    assert_eq!(wasm.blocked, ["10.0.0.0/8".parse().expect("a block")]);
    assert_eq!((wasm.max_attempts, wasm.purge_interval.as_secs()), (1, 1), "both have a minimum");
}

#[test]
fn debug_pages_can_be_disabled() {
    let port =
        |variables: &[(&str, &str)]| settings("sidecar", &[POD, variables].concat()).expect("settings").ports.debug;
    assert_eq!(port(&[]), Some(15004));
    assert_eq!(port(&[("PROXY_XDS_DEBUG_VIA_AGENT_PORT", "16004")]), Some(16004));
    assert_eq!(port(&[("PROXY_XDS_DEBUG_VIA_AGENT", "false")]), None);
}
