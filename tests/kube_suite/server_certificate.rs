//! The server's own certificate from a signer behind the Kubernetes API (P10).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use serde_json::json;
use sluice_auth::TrustDomain;
use sluice_authority::{DnsNames, ServerCertificateKeeper, ServerSigner};
use sluice_model::{CaCertificate, MeshConfig};
use sluice_testkit::kube_api::KubeApi;
use sluice_testkit::secure::{ClientTls, TlsClient};
use sluice_testkit::wait::{until, until_async};
use sluice_tls::{ClientVerifier, ServerIdentity, TlsVersions, server_config};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use x509_parser::time::ASN1Time;

use super::client;
use super::signer::{Answer, RequestedKey, Signer};

const SYSTEM: &str = "istio-system";
const ISTIOD: &str = "istiod.istio-system.svc";

/// A certificate for the key of a request with these names, valid between these seconds from now.
fn certify(issuer: &Issuer<'_, KeyPair>, request: &str, names: &[&str], (begins, ends): (i64, i64)) -> Answer {
    let mut params = CertificateParams::default();
    let name = |name: &&str| SanType::DnsName((*name).try_into().expect("a name"));
    params.subject_alt_names = names.iter().map(name).collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs();
    let at = |seconds: i64| ASN1Time::from_timestamp(now.cast_signed() + seconds).expect("a time").to_datetime();
    (params.not_before, params.not_after) = (at(begins), at(ends));
    Answer::Certificate(params.signed_by(&RequestedKey::of(request), issuer).expect("a certificate").pem())
}

fn mesh(signer: &Signer, roots: &str) -> MeshConfig {
    let certificate = CaCertificate {
        pem: roots.into(),
        cert_signers: vec![signer.name.as_str().into()],
        ..CaCertificate::default()
    };
    MeshConfig { ca_certificates: vec![certificate], ..MeshConfig::default() }
}

fn keeper(server_signer: &Arc<ServerSigner>) -> ServerCertificateKeeper {
    let clients = Arc::new(ClientVerifier::new(TrustDomain::new("td".into())));
    let mut keeper = ServerCertificateKeeper::new(clients, None, Duration::from_secs(3600));
    keeper.server_signer = Some(server_signer.clone());
    keeper.names = Some(DnsNames::new(SYSTEM, "default", "", &[]));
    keeper.interval = Duration::from_millis(10);
    keeper
}

/// Completes a handshake with a server of this configuration, and returns the server's certificate.
async fn served_certificate(identity: &Arc<ServerIdentity>, roots: &str) -> Result<Vec<u8>, String> {
    let clients = Arc::new(ClientVerifier::new(TrustDomain::new("td".into())));
    let server = server_config(&TlsVersions::default(), identity.clone(), clients).expect("a server");
    let client = TlsClient::new(ISTIOD, roots, &ClientTls::default()).expect("valid roots");
    let (client_io, server_io) = tokio::io::duplex(1 << 16);
    let accepting = tokio::spawn(async move { TlsAcceptor::from(server).accept(server_io).await.map(drop) });
    let connected = client.handshake(client_io).await.map_err(|error| error.to_string());
    accepting.abort();
    let certificates = connected?.get_ref().1.peer_certificates().map(<[_]>::to_vec);
    Ok(certificates.expect("certificates")[0].to_vec())
}

const NAMES: [&str; 3] = ["istio-pilot.istio-system.svc", "istiod-remote.istio-system.svc", ISTIOD];

with_api_server!(a_signer_of_the_cluster_issues_and_renews_the_server_certificate, shared);
async fn a_signer_of_the_cluster_issues_and_renews_the_server_certificate(api: KubeApi) {
    let api = Arc::new(api);
    let is_long_lived = Arc::new(AtomicBool::new(false));
    let long = is_long_lived.clone();
    let signer = Signer::start(&api, "mesh", move |issuer, request| {
        // At first, more than half of the lifetime is over when the certificate is issued.
        let validity = if long.load(Ordering::SeqCst) { (-60, 3600) } else { (-3600, 600) };
        certify(issuer, request, &NAMES, validity)
    })
    .await;
    let timeout = Duration::from_secs(10);
    let server_signer = Arc::new(ServerSigner::new(client(&api).await, &signer.name, timeout));
    let mut keeper = keeper(&server_signer);
    let error = keeper.begin().await.expect_err("no roots").to_string();
    let expect = format!("no caCertificates whose certSigners name {}", signer.name);
    assert!(error.contains(&expect), "{error}");
    assert_eq!(signer.created(), 0, "no request is created for a certificate that cannot be verified");

    server_signer.follow(&mesh(&signer, &signer.root));
    assert!(keeper.begin().await.expect("certified"));
    let object = signer.first_signed();
    assert_eq!(object["spec"]["expirationSeconds"], 3600);
    assert_eq!(object["spec"]["usages"], json!(["digital signature", "key encipherment", "server auth"]));
    let (identity, bundle) = (keeper.identity.clone(), keeper.bundle.subscribe());
    assert_eq!(bundle.borrow().roots.trim(), signer.root.trim(), "namespaces get the roots of the server certificate");
    let first = served_certificate(&identity, &signer.root).await.expect("a handshake");

    // It is renewed while more than half of its lifetime is over.
    let stop = CancellationToken::new();
    let keeping = tokio::spawn(keeper.run(stop.clone()));
    until_async("it is renewed", async || (signer.created() > 2).then_some(())).await;
    is_long_lived.store(true, Ordering::SeqCst);
    assert_ne!(served_certificate(&identity, &signer.root).await.expect("a handshake"), first, "without a restart");

    // With other roots in mesh config, the server gets another certificate, and the namespaces get other roots.
    let both = format!("{}{}", signer.root, other_root());
    server_signer.follow(&mesh(&signer, &both));
    until("the namespaces have the roots", || (bundle.borrow().roots.trim() == both.trim()).then_some(())).await;
    // Mesh config without roots, or with equal ones, changes nothing.
    server_signer.follow(&MeshConfig::default());
    assert_eq!(server_signer.roots().trim(), both.trim());
    assert!(served_certificate(&identity, &signer.root).await.is_ok());
    stop.cancel();
    keeping.await.expect("no panic");
    signer.is_clean().await;
}

fn other_root() -> String {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "other");
    params.self_signed(&KeyPair::generate().expect("a key")).expect("a root").pem()
}

with_api_server!(a_server_certificate_that_clients_would_reject_is_not_served, shared);
async fn a_server_certificate_that_clients_would_reject_is_not_served(api: KubeApi) {
    let api = Arc::new(api);
    let validity = (-60, 3600);
    type CertificateAnswer = fn(&Issuer<'_, KeyPair>, &str, (i64, i64)) -> Answer;
    let cases: [(&str, CertificateAnswer); 3] = [
        ("names", |issuer, request, validity| certify(issuer, request, &NAMES[..2], validity)),
        ("names", |issuer, request, validity| certify(issuer, request, &["vault.bank.svc"], validity)),
        ("does not verify", |issuer, request, _| certify(issuer, request, &NAMES, (-3600, -60))),
    ];
    for (number, (reason, answer)) in cases.into_iter().enumerate() {
        let name = format!("mesh-{number}");
        let signer = Signer::start(&api, &name, move |issuer, request| answer(issuer, request, validity)).await;
        let server_signer = Arc::new(ServerSigner::new(client(&api).await, &signer.name, Duration::from_secs(10)));
        server_signer.follow(&mesh(&signer, &signer.root));
        let mut keeper = keeper(&server_signer);
        let error = keeper.begin().await.expect_err(reason).to_string();
        assert!(error.contains(reason), "{reason}: {error}");
        assert!(served_certificate(&keeper.identity, &signer.root).await.is_err());
        signer.is_clean().await;
        // A certificate of another root is rejected too.
        server_signer.follow(&mesh(&signer, &other_root()));
        assert!(keeper.begin().await.is_err());
    }
    let silent = Signer::start(&api, "silent", |_, _| Answer::None).await;
    let server_signer = Arc::new(ServerSigner::new(client(&api).await, &silent.name, Duration::from_millis(50)));
    server_signer.follow(&mesh(&silent, &silent.root));
    let error = keeper(&server_signer).begin().await.expect_err("silent").to_string();
    assert!(error.contains("is not signed after 0.05 s"), "{error}");
}
