//! The conformance tests of the Gateway API (`sigs.k8s.io/gateway-api/conformance`). `make conformance` runs this.

mod page;

use std::net::Ipv4Addr;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sluice_testkit::cluster::Cluster;
use sluice_testkit::node::{Image, TestNode};
use sluice_testkit::pods::cluster_mesh::ClusterMesh;
use sluice_testkit::pods::envoy;
use sluice_testkit::pods::network::pods_are_permitted;

use crate::fixture::{ALL, CHART, SYSTEM, manifest, programs};
use crate::upgrade::{helm, images};

/// The file of the report. Without it, this is skipped: it takes long.
const REPORT_VARIABLE: &str = "SLUICE_CONFORMANCE_REPORT";
/// The file of the page about the report, if it is written.
const PAGE_VARIABLE: &str = "SLUICE_CONFORMANCE_PAGE";
/// Further flags of the conformance tests, separated by spaces. They replace those of the same name.
const FLAGS_VARIABLE: &str = "SLUICE_CONFORMANCE_FLAGS";

const PROFILES: [&str; 4] = ["GATEWAY-HTTP", "GATEWAY-GRPC", "GATEWAY-TLS", "GATEWAY-TCP"];

/// The extended features that are supported. Those that are not are `GatewayBackendClientCertificate`,
/// `GatewayHTTPSListenerDetectMisdirectedRequests` and `UDPRoute`, as with Istio.
const FEATURES: [&str; 40] = [
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
/// Number of pods that run at a time.
const PODS: usize = 60;

#[tokio::test(flavor = "multi_thread")]
async fn conformance_of_the_gateway_api() -> Result<()> {
    let (Some(programs), Some(report)) = (programs(), std::env::var_os(REPORT_VARIABLE).map(PathBuf::from)) else {
        return Ok(());
    };
    if !pods_are_permitted() {
        return Ok(());
    }
    let cluster = Cluster::start(&programs).await?;
    cluster.install_crds("istio.yaml", ALL).await?;
    cluster.install_crds("gateway-api.yaml", ALL).await?;
    cluster.create_namespace(SYSTEM, json!({})).await?;
    let mut mesh = ClusterMesh::new(&cluster)?;
    let host = mesh.pods.host_ip();
    // The image has Envoy at the default path.
    let envoy = format!("meshConfig.defaultConfig.binaryPath={}", mesh.pods.linked_path(&envoy::binary()?)?.display());
    let mut images = images(&mesh.pods)?;
    let echo = mesh.pods.linked_path(&programs.join("echo-basic"))?;
    // The name server is the backend of UDPRoutes only, which are not supported. It has to be ready.
    for name in ["/echo-basic:", "/coredns:"] {
        images.push(Image { name, program: echo.clone(), reads_cluster: false });
    }
    let mut node = TestNode::new(&cluster, &[], &mut mesh.pods, PODS, images).await?;
    node.serve((SYSTEM, "istiod"), 15012, (host, 15012).into()).await?;
    mesh.pods.add_name("istiod.istio-system.svc", host)?;
    let [_, b, c, _] = host.octets();
    node.balance_loads(Ipv4Addr::new(127, b, c, 0));
    let flags = std::env::var(FLAGS_VARIABLE).unwrap_or_default();
    node.during(async {
        let chart = manifest(CHART).display().to_string();
        let install = ["install", "istiod", &chart, "--namespace", SYSTEM, "--wait", "--timeout", "2m"];
        helm(&cluster, &[&install[..], &["--set", "autoscaleEnabled=false", "--set", &envoy]].concat()).await?;
        let status = tokio::process::Command::new(programs.join("conformance"))
            .args(["-test.run=^TestConformance$", "-test.v", "-test.timeout=2h", "--gateway-class=istio"])
            .arg(format!("--conformance-profiles={}", PROFILES.join(",")))
            .arg(format!("--supported-features={}", FEATURES.join(",")))
            .arg(format!("--usable-address={USABLE_ADDRESS}"))
            .arg("--unusable-address=foo")
            .args(["--organization=Sluice", "--project=Sluice", "--url=https://sluice.invalid", "--contact=none"])
            .arg(concat!("--version=", env!("CARGO_PKG_VERSION")))
            .arg(format!("--report-output={}", report.display()))
            .args(flags.split_whitespace())
            .env("KUBECONFIG", cluster.admin_kubeconfig())
            .kill_on_drop(true)
            .status()
            .await
            .context("run the conformance tests")?;
        if let Some(page) = std::env::var_os(PAGE_VARIABLE) {
            page::write(&report, page.as_ref())?;
        }
        ensure!(status.success(), "the conformance tests fail: {status}");
        Ok(())
    })
    .await
}
