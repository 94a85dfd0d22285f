//! Callers with tokens that the API server has issued.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_testkit::ads::{AdsStream, Kind, Protocol};
use sluice_testkit::cluster::Cluster;
use sluice_testkit::pods::identity::certificates;
use sluice_testkit::secure::{self, CertificateRequest, ClientTls, signing_request};
use tonic::Code;
use tonic::transport::Channel;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::fixture::{
    Proxy, RunningControlPlane, SYSTEM, create_node, create_pod, node, service, start, start_with_crds, until,
};

/// The roots that the control plane has written into a namespace.
async fn roots(cluster: &Cluster, namespace: &str) -> Result<String> {
    cluster.exists("v1", "ConfigMap", namespace, "istio-ca-root-cert").await?;
    let config_map = cluster.get("v1", "ConfigMap", namespace, "istio-ca-root-cert").await?.context("it exists")?;
    config_map["data"]["root-cert.pem"].as_str().map(str::to_owned).context("it has the roots")
}

/// Connects as a pod of a namespace does: it trusts the roots in the ConfigMap of its namespace.
pub(crate) async fn connect(
    cluster: &Cluster,
    control_plane: &RunningControlPlane,
    namespace: &str,
    presented: &ClientTls,
) -> Result<Channel> {
    let address = control_plane.server.secure.context("the secure port is open")?;
    secure::connect(address, "istiod.istio-system.svc", &roots(cluster, namespace).await?, presented).await
}

/// The URIs in the first certificate of a PEM text.
fn uri(pem: &str) -> Result<String> {
    let der = certificates(pem)?.remove(0);
    let (_, certificate) = X509Certificate::from_der(&der).context("read a certificate")?;
    let names = certificate.subject_alternative_name()?.context("it has names")?.value;
    Ok(names.general_names.first().context("it has a name")?.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_authenticated_by_its_token_and_its_certificate() -> Result<()> {
    let Some(cluster) = start().await? else { return Ok(()) };
    create_node(&cluster, "node-1").await?;
    cluster.create_namespace("shop", json!({})).await?;
    cluster.apply(&service("shop", "cart")).await?;
    let metadata = json!({"name": "cart", "namespace": "shop"});
    cluster.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})).await?;
    let pod = cluster
        .apply(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cart-1", "namespace": "shop"},
            "spec": {"serviceAccountName": "cart", "nodeName": "node-1", "containers": [{"name": "app", "image": "app"}]},
        }))
        .await?;
    let uid = pod["metadata"]["uid"].as_str().context("the pod has a UID")?;
    let control_plane = RunningControlPlane::start(&cluster).await?;
    let channel = connect(&cluster, &control_plane, "shop", &ClientTls::default()).await?;

    let token = cluster.create_token(("shop", "cart"), Some("istio-ca"), Some(("cart-1", uid))).await?;
    let (key, csr) = signing_request()?;
    let chain = CertificateRequest::with_token(&csr, &token).send(&channel).await?;
    assert!(uri(&chain[0])?.contains("spiffe://cluster.local/ns/shop/sa/cart"), "{}", uri(&chain[0])?);
    let mut proxy = Proxy::new(AdsStream::open_with_token(
        channel.clone(),
        Protocol::Delta,
        node("sidecar", "shop", "cart")?,
        &token,
    )?);
    proxy.subscribe(Kind::Cds, &[])?;
    let name = "outbound|80||cart.shop.svc.cluster.local";
    proxy.receives(name, "a stream with the token is served", Value::is_object).await?;

    let pair = Some((chain.concat(), key));
    let presented = connect(&cluster, &control_plane, "shop", &ClientTls { pair, ..ClientTls::default() }).await?;
    let stream = AdsStream::open(presented, Protocol::Delta, node("sidecar", "shop", "cart")?)?;
    let mut proxy = Proxy::new(stream);
    proxy.subscribe(Kind::Cds, &[])?;
    proxy.receives(name, "a stream with the certificate is served", Value::is_object).await?;

    // Tokens for another audience, of a deleted pod, and made up.
    let refused = async |token: &str| -> Result<Code> {
        let outcome = CertificateRequest::with_token(&signing_request()?.1, token).send(&channel).await;
        Ok(outcome.err().map_or(Code::Ok, |status| status.code()))
    };
    let other_audience = cluster.create_token(("shop", "cart"), None, None).await?;
    assert_eq!(refused(&other_audience).await?, Code::Unauthenticated);
    assert_eq!(refused("made-up").await?, Code::Unauthenticated);
    let unused = cluster.create_token(("shop", "cart"), Some("istio-ca"), Some(("cart-1", uid))).await?;
    cluster.delete("v1", "Pod", "shop", "cart-1").await?;
    until("the token of a deleted pod is rejected", async || Ok(refused(&unused).await? == Code::Unauthenticated)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_gets_secrets_that_its_service_account_may_list() -> Result<()> {
    let Some(cluster) = start_with_crds(&["gateways."]).await? else { return Ok(()) };
    create_node(&cluster, "node-1").await?;
    cluster.create_namespace("edge", json!({})).await?;
    create_pod(&cluster, "edge", "default-1", "edge").await?;
    cluster.report_pod(("edge", "default-1"), "10.244.0.200", true).await?;
    let tls = json!({"mode": "SIMPLE", "credentialName": "edge-cert"});
    let server = json!({"port": {"number": 443, "name": "https", "protocol": "HTTPS"}, "tls": tls, "hosts": ["*"]});
    cluster
        .apply(&json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
            "metadata": {"name": "edge", "namespace": "edge"},
            "spec": {"selector": {"app": "edge"}, "servers": [server]},
        }))
        .await?;
    let authority = sluice_testkit::pods::identity::Authority::new()?;
    let (certificate, key) = authority.issue_hosts(&["edge.example".to_owned()])?;
    cluster
        .apply(&json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": "edge-cert", "namespace": "edge"},
            "stringData": {"tls.crt": certificate, "tls.key": key},
        }))
        .await?;
    let control_plane = RunningControlPlane::start(&cluster).await?;
    let channel = connect(&cluster, &control_plane, "edge", &ClientTls::default()).await?;
    let token = cluster.create_token(("edge", "default"), Some("istio-ca"), None).await?;
    let identity = node("router", "edge", "default")?;
    let mut gateway = Proxy::new(AdsStream::open_with_token(channel, Protocol::Delta, identity, &token)?);
    gateway.subscribe(Kind::Sds, &["kubernetes://edge-cert"])?;
    let is_reviewed = |log: &str, allowed: bool| {
        log.lines()
            .any(|line| line.contains("reviewed access to Secrets") && line.contains(&format!("\"allowed\":{allowed}")))
    };
    until("the account is reviewed", async || Ok(is_reviewed(&control_plane.log()?, false))).await?;

    cluster
        .apply_yaml(
            "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: gateway, namespace: edge}
rules: [{apiGroups: [''], resources: [secrets], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: gateway, namespace: edge}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: gateway}
subjects: [{kind: ServiceAccount, name: default, namespace: edge}]
",
        )
        .await?;
    // A result is valid for a minute, so the gateway of another replica shows the effect first.
    let second = RunningControlPlane::start_as(&cluster, cluster.address(), "istiod-2").await?;
    let channel = connect(&cluster, &second, SYSTEM, &ClientTls::default()).await?;
    let identity = node("router", "edge", "default")?;
    let mut gateway = Proxy::new(AdsStream::open_with_token(channel, Protocol::Delta, identity, &token)?);
    gateway.subscribe(Kind::Sds, &["kubernetes://edge-cert"])?;
    gateway.receives("kubernetes://edge-cert", "the gateway gets its certificate", Value::is_object).await
}
