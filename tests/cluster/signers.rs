//! The API of certificates: signers that issue workload certificates, and the ClusterTrustBundle.

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SignatureAlgorithm};
use serde_json::{Value, json};
use sluice_testkit::cluster::Cluster;
use sluice_testkit::secure::{CertificateRequest, ClientTls};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use crate::fixture::{RunningControlPlane, USER, start_with_values, until};
use crate::identity::connect;

const CSR: (&str, &str) = ("certificates.k8s.io/v1", "CertificateSigningRequest");
const WORKLOAD: &str = "spiffe://cluster.local/ns/shop/sa/default";

/// The key that a request is for.
struct RequestedKey(Vec<u8>);

impl PublicKeyData for RequestedKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// Waits for an approved request, and signs it as its signer. Returns the request.
async fn sign_one(cluster: &Cluster, issuer: &Issuer<'_, KeyPair>) -> Result<Value> {
    let list = http::Request::get("/apis/certificates.k8s.io/v1/certificatesigningrequests").body(Vec::new())?;
    let mut approved = None;
    until("a request is approved", async || {
        let list: Value = cluster.client().request(list.clone()).await?;
        let is_approved = |request: &&Value| request.pointer("/status/conditions/0/type") == Some(&json!("Approved"));
        approved = list["items"].as_array().into_iter().flatten().find(is_approved).cloned();
        Ok(approved.is_some())
    })
    .await?;
    let approved = approved.context("a request is approved")?;
    let pem = STANDARD.decode(approved["spec"]["request"].as_str().context("it has a request")?)?;
    let pem = String::from_utf8(pem)?;
    let der = STANDARD.decode(pem.lines().filter(|line| !line.starts_with('-')).collect::<String>())?;
    let (_, parsed) = X509CertificationRequest::from_der(&der).context("read the request")?;
    let key = parsed.certification_request_info.subject_pki.subject_public_key.data.to_vec();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(WORKLOAD.try_into()?)];
    let certificate = STANDARD.encode(params.signed_by(&RequestedKey(key), issuer)?.pem());
    let name = approved["metadata"]["name"].as_str().context("it has a name")?;
    cluster.write_status(CSR.0, CSR.1, ("", name), json!({"certificate": certificate})).await?;
    Ok(approved)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signer_of_the_api_issues_workload_certificates() -> Result<()> {
    let values = ["--set", "global.certSigners={example.com/mesh}"];
    let Some(cluster) = start_with_values(&values).await? else { return Ok(()) };
    cluster.create_namespace("shop", json!({})).await?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "signer");
    let root = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);
    let mesh = json!({"caCertificates": [{"pem": root, "certSigners": ["example.com/mesh"]}]}).to_string();
    cluster.patch("v1", "ConfigMap", ("istio-system", "istio"), &json!({"data": {"mesh": mesh}})).await?;
    let variables = [("EXTERNAL_CA", "ISTIOD_RA_KUBERNETES_API"), ("K8S_SIGNER", "example.com/mesh")];
    let control_plane = RunningControlPlane::start_with(&cluster, cluster.address(), &variables).await?;
    let channel = connect(&cluster, &control_plane, "shop", &ClientTls::default()).await?;
    let token = cluster.create_token(("shop", "default"), Some("istio-ca"), None).await?;
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(WORKLOAD.try_into()?)];
    let csr = params.serialize_request(&KeyPair::generate()?)?.pem()?;
    let issue = async { anyhow::Ok(CertificateRequest::with_token(&csr, &token).send(&channel).await?) };
    let (chain, signed) = tokio::try_join!(issue, sign_one(&cluster, &issuer))?;
    assert_eq!(chain.last(), Some(&root), "{chain:?}");
    assert_eq!(signed["spec"]["signerName"], "example.com/mesh");
    let name = signed["metadata"]["name"].as_str().context("it has a name")?;
    until("the request is deleted", async || Ok(cluster.get(CSR.0, CSR.1, "", name).await?.is_none())).await?;
    let mut refused = cluster.audited()?;
    refused.retain(|request| request.user == USER && matches!(request.code, 401 | 403));
    assert_eq!(refused, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_are_written_into_a_cluster_trust_bundle() -> Result<()> {
    let values = ["--set", "pilot.env.ENABLE_CLUSTER_TRUST_BUNDLE_API=true"];
    let Some(cluster) = start_with_values(&values).await? else { return Ok(()) };
    let variables = [("ENABLE_CLUSTER_TRUST_BUNDLE_API", "true")];
    let control_plane = RunningControlPlane::start_with(&cluster, cluster.address(), &variables).await?;
    let name = "istio.io:istiod-ca:root-cert";
    cluster.exists("certificates.k8s.io/v1", "ClusterTrustBundle", "", name).await?;
    let bundle = cluster.get("certificates.k8s.io/v1", "ClusterTrustBundle", "", name).await?.context("it exists")?;
    let roots = bundle["spec"]["trustBundle"].as_str().context("it has roots")?;
    assert!(roots.starts_with("-----BEGIN CERTIFICATE-----"), "{roots}");
    assert_eq!(control_plane.warnings()?, Vec::<String>::new());
    Ok(())
}
