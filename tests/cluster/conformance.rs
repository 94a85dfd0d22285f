//! The conformance tests of the Gateway API (`sigs.k8s.io/gateway-api/conformance`). `make conformance` runs this.

mod page;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sluice_testkit::cluster::Cluster;
use sluice_testkit::node::{Image, TestNode};
use sluice_testkit::pods::cluster_mesh::ClusterMesh;
use sluice_testkit::pods::envoy;
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::pod_set::PodSet;

use crate::fixture::{ALL, CHART, SYSTEM, manifest, programs};
use crate::upgrade::{helm, images};
use crate::webhooks::until_webhooks_are_called;

/// The file of the report about gateways. Without it, this is skipped: it takes long. That about sidecars is beside it.
const REPORT_VARIABLE: &str = "SLUICE_CONFORMANCE_REPORT";
/// The file of the page about the reports, if it is written.
const PAGE_VARIABLE: &str = "SLUICE_CONFORMANCE_PAGE";
/// Further flags of the conformance tests, separated by spaces. They replace those of the same name.
const FLAGS_VARIABLE: &str = "SLUICE_CONFORMANCE_FLAGS";

const GATEWAY_PROFILES: &str = "GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS,GATEWAY-TCP";
const MESH_PROFILES: &str = "MESH-HTTP,MESH-GRPC";

/// The extended features of gateways that are supported. Those that are not are `GatewayBackendClientCertificate`,
/// `GatewayHTTPSListenerDetectMisdirectedRequests` and `UDPRoute`, as with Istio.
const GATEWAY_FEATURES: [&str; 40] = [
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRouteNamedRouteRule",
    "GatewayAddressEmpty",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayInfrastructure",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "TCPRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
];
/// A host that the control plane accepts as the address of a Gateway: its Service exists.
const USABLE_ADDRESS: &str = "infra-backend-v1.gateway-conformance-infra.svc.cluster.local";
/// The extended features of sidecars that are supported. `MeshClusterIPMatching` is not, as with Istio. The profiles of the mesh do not
/// count the features of routes.
const MESH_FEATURES: [&str; 13] = [
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteParentRefPort",
    "HTTPRouteResponseHeaderModification",
    "MeshConsumerRoute",
    "MeshHTTPRouteBackendRequestHeaderModification",
    "MeshHTTPRouteNamedRouteRule",
    "MeshHTTPRouteQueryParamMatching",
    "MeshHTTPRouteRedirectPath",
    "MeshHTTPRouteRedirectPort",
    "MeshHTTPRouteRewritePath",
    "MeshHTTPRouteSchemeRedirect",
];
/// Number of pods of gateways and their backends that run at a time.
const GATEWAY_PODS: usize = 60;
/// The same of the tests of sidecars.
const MESH_PODS: usize = 8;
/// The user of the programs of tests.
const APP_UID: u32 = 1000;

/// One run of the conformance tests.
struct Run {
    /// Values of the chart of the control plane.
    values: &'static [&'static str],
    pods: usize,
    report: PathBuf,
    /// Flags of the conformance tests.
    flags: Vec<String>,
}

/// The programs of the cluster and the file of the report, unless the tests are skipped.
fn prerequisites() -> Option<(PathBuf, PathBuf)> {
    let (programs, report) = (programs()?, PathBuf::from(std::env::var_os(REPORT_VARIABLE)?));
    pods_are_permitted().then_some((programs, report))
}

/// The report about sidecars, beside that about gateways.
fn mesh_report(report: &Path) -> PathBuf {
    report.with_extension("mesh.yaml")
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_conform_to_the_gateway_api() -> Result<()> {
    let Some((programs, report)) = prerequisites() else { return Ok(()) };
    let flags = vec![
        format!("--conformance-profiles={GATEWAY_PROFILES}"),
        format!("--supported-features={}", GATEWAY_FEATURES.join(",")),
        format!("--usable-address={USABLE_ADDRESS}"),
        "--unusable-address=foo".to_owned(),
    ];
    conform(&programs, &report, Run { values: &[], pods: GATEWAY_PODS, report: report.clone(), flags }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_conform_to_the_gateway_api() -> Result<()> {
    let Some((programs, report)) = prerequisites() else { return Ok(()) };
    let flags = vec![
        format!("--conformance-profiles={MESH_PROFILES}"),
        format!("--supported-features={}", MESH_FEATURES.join(",")),
        "--namespace-labels=istio-injection=enabled".to_owned(),
    ];
    // With this profile, proxies answer the DNS queries of applications: pods have no other name server.
    let values = &["--set", "profile=preview"];
    conform(&programs, &report, Run { values, pods: MESH_PODS, report: mesh_report(&report), flags }).await
}

/// Runs the conformance tests against the control plane of the chart, and writes the page about all reports.
async fn conform(programs: &Path, gateway_report: &Path, run: Run) -> Result<()> {
    let cluster = Cluster::start(programs).await?;
    cluster.install_crds("istio.yaml", ALL).await?;
    cluster.install_crds("gateway-api.yaml", ALL).await?;
    cluster.create_namespace(SYSTEM, json!({})).await?;
    let mut mesh = ClusterMesh::new(&cluster)?;
    let host = mesh.pods.host_ip();
    // The image has Envoy at the default path.
    let envoy = format!("meshConfig.defaultConfig.binaryPath={}", mesh.pods.linked_path(&envoy::binary()?)?.display());
    let mut images = images(&mesh.pods)?;
    images.extend(test_images(programs, &mesh.pods)?);
    let mut node = TestNode::new(&cluster, &[], &mut mesh.pods, run.pods, images).await?;
    node.serve_commands(&programs.join("exec")).await?;
    node.serve((SYSTEM, "istiod"), 15012, (host, 15012).into()).await?;
    mesh.pods.add_name("istiod.istio-system.svc", host)?;
    let [_, b, c, _] = host.octets();
    node.balance_loads(Ipv4Addr::new(127, b, c, 0));
    let flags = std::env::var(FLAGS_VARIABLE).unwrap_or_default();
    node.during(async {
        let chart = manifest(CHART).display().to_string();
        let install = ["install", "istiod", &chart, "--namespace", SYSTEM, "--wait", "--timeout", "2m"];
        let settings = ["--set", "autoscaleEnabled=false", "--set", &envoy];
        helm(&cluster, &[&install[..], &settings, run.values].concat()).await?;
        until_webhooks_are_called(&cluster, "istio-sidecar-injector").await?;
        let status = tokio::process::Command::new(programs.join("conformance"))
            .args(["-test.run=^TestConformance$", "-test.v", "-test.timeout=2h", "--gateway-class=istio"])
            .args(&run.flags)
            .args(["--organization=Sluice", "--project=Sluice", "--url=https://sluice.invalid", "--contact=none"])
            .arg(concat!("--version=", env!("CARGO_PKG_VERSION")))
            .arg(format!("--report-output={}", run.report.display()))
            .args(flags.split_whitespace())
            .env("KUBECONFIG", cluster.admin_kubeconfig())
            .kill_on_drop(true)
            .status()
            .await
            .context("run the conformance tests")?;
        if let Some(page) = std::env::var_os(PAGE_VARIABLE) {
            page::write(&[gateway_report, &mesh_report(gateway_report)], page.as_ref())?;
        }
        ensure!(status.success(), "the conformance tests fail: {status}");
        Ok(())
    })
    .await
}

/// The images of the manifests of the conformance tests.
fn test_images(programs: &Path, pods: &PodSet) -> Result<Vec<Image>> {
    let echo = pods.linked_path(&programs.join("echo-basic"))?;
    let root = pods.file("echo-advanced");
    std::fs::create_dir(&root).context("make the directory of an image")?;
    let (certificate, key) = pods.write_certificate("echo-advanced", &["echo".to_owned()])?;
    for (name, file) in [("cert.crt", certificate), ("cert.key", key)] {
        std::fs::copy(&file, root.join(name)).with_context(|| format!("copy {}", file.display()))?;
    }
    for name in ["client", "server"] {
        std::fs::copy(programs.join("echo-advanced").join(name), root.join(name))
            .with_context(|| format!("copy {name}"))?;
    }
    let image = |name, program: &Path, root: Option<&Path>| Image {
        name,
        program: program.to_owned(),
        reads_cluster: false,
        user: APP_UID,
        root: root.map(Path::to_owned),
    };
    Ok(vec![
        image("/echo-basic:", &echo, None),
        // The name server is the backend of UDPRoutes only, which are not supported. It has to be ready.
        image("/coredns:", &echo, None),
        image("/echo-advanced:", &root.join("server"), Some(&root)),
    ])
}
