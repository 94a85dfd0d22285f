//! `sluicectl` with `--xds-address`: debug pages over xDS with a certificate, a token, and without credentials.

use std::path::Path;

use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol};
use sluice_testkit::secure::{CertificateRequest, ClientTls, signing_request};

use super::mesh::{Answer, run};
use crate::identity::mesh::{CART, IdentityFixture};

const OPERATOR: &str = "system:serviceaccount:istio-system:default";

/// A proxy that has received its clusters.
async fn cart(mesh: &IdentityFixture) -> AdsStream {
    let node = serde_json::json!({
        "id": "sidecar~10.0.9.9~cart-7f.shop~shop.svc.cluster.local",
        "metadata": {
            "NAME": "cart-7f", "NAMESPACE": "shop", "SERVICE_ACCOUNT": "cart", "CLUSTER_ID": "Kubernetes",
            "ISTIO_VERSION": "1.30.0", "PROXY_CONFIG": {},
        },
    });
    let channel = mesh.connect(&ClientTls::default()).await;
    let identity = Identity::of_node(&node).expect("a node");
    let mut stream =
        AdsStream::open_with_token(channel, Protocol::Sotw, identity, &mesh.token(CART)).expect("a stream");
    stream.subscribe(Kind::Cds.type_url(), &[], std::collections::BTreeMap::new()).expect("sent");
    let update = stream.next().await.expect("an answer").expect("an update");
    stream.ack(&update).expect("sent");
    stream
}

/// Writes the files of `--cert-dir` for an operator.
async fn write_certificate(mesh: &IdentityFixture, directory: &Path) {
    let (key, csr) = signing_request().expect("a request");
    let channel = mesh.connect(&ClientTls::default()).await;
    let chain = CertificateRequest::with_token(&csr, &mesh.token(OPERATOR)).send(&channel).await.expect("issued");
    for (name, text) in [("cert-chain.pem", &chain[0]), ("key.pem", &key), ("root-cert.pem", &mesh.root())] {
        std::fs::write(directory.join(name), text).expect("written");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_requested_over_xds_with_a_certificate_or_a_token() {
    let mesh = IdentityFixture::start(&[]).await;
    let _cart = cart(&mesh).await;
    let directory = tempfile::tempdir().expect("a directory");
    write_certificate(&mesh, directory.path()).await;
    let token = directory.path().join("token");
    std::fs::write(&token, mesh.token(OPERATOR)).expect("written");
    let address = format!("--xds-address={}", mesh.server.secure.expect("the port is open"));
    let path = |name: &str| directory.path().join(name).display().to_string();
    let certificate = [format!("--cert-dir={}", directory.path().display())];
    let verified = [format!("--token-file={}", path("token")), format!("--ca-file={}", path("root-cert.pem"))];
    let unverified = [format!("--token-file={}", path("token")), "--insecure".to_owned()];
    for credentials in [&certificate[..], &verified, &unverified] {
        let ctl = async |arguments: &[&str]| -> Answer {
            let flags = std::iter::once(&address).chain(credentials).map(String::as_str);
            let arguments: Vec<&str> = arguments.iter().copied().chain(flags).collect();
            run(&arguments).await
        };
        let status = ctl(&["proxy-status"]).await;
        assert_eq!(status.code, 0, "{credentials:?}: {}", status.errors);
        let lines: Vec<&str> = status.out.lines().collect();
        assert_eq!((lines.len(), lines[1].split_whitespace().next()), (2, Some("cart-7f.shop")), "{}", status.out);
        let version = ctl(&["version"]).await;
        let expected = format!("control plane version: {}\n", env!("CARGO_PKG_VERSION"));
        assert!(
            version.out.contains(&expected) && version.out.contains("1 proxy"),
            "{}{}",
            version.out,
            version.errors
        );
        let list = ctl(&["internal-debug", "list"]).await;
        assert!(list.json().to_string().contains("\"syncz\""), "{}{}", list.out, list.errors);
        let clusters = ctl(&["proxy-config", "cluster", "cart-7f.shop", "--from", "control-plane"]).await;
        assert!(clusters.out.contains("cart.shop.svc.cluster.local"), "{}{}", clusters.out, clusters.errors);
        let unknown = ctl(&["internal-debug", "config_dump?proxyID=unknown.shop"]).await;
        assert_eq!(unknown.code, 1, "{}{}", unknown.out, unknown.errors);
        let page = ctl(&["internal-debug", "clusterzz"]).await;
        assert_eq!(page.code, 1, "{}{}", page.out, page.errors);
        assert!(page.errors.contains("did you mean \"clusterz\"?"), "{}", page.errors);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_is_not_sent_to_a_server_that_is_not_verified() {
    let mesh = IdentityFixture::start(&[]).await;
    let directory = tempfile::tempdir().expect("a directory");
    let token = directory.path().join("token");
    std::fs::write(&token, mesh.token(OPERATOR)).expect("written");
    write_certificate(&mesh, directory.path()).await;
    let address = format!("--xds-address={}", mesh.server.secure.expect("the port is open"));
    let token = format!("--token-file={}", token.display());
    let roots = format!("--ca-file={}", directory.path().join("root-cert.pem").display());
    let other = run(&["proxy-status", &address, &token, &roots, "--authority", "other.example"]).await;
    assert_eq!(other.code, 3, "{}", other.out);
    assert!(other.errors.contains("--authority") && !other.errors.contains("eyJ"), "{}", other.errors);
    let plain = format!("--xds-address={}", mesh.server.grpc);
    let refused = run(&["proxy-status", &plain, "--plaintext"]).await;
    assert_eq!(refused.code, 3, "{}{}", refused.out, refused.errors);
    assert!(refused.errors.contains("Unauthenticated"), "{}", refused.errors);
    let both = run(&["proxy-status", &plain, "--plaintext", "--address=localhost:1"]).await;
    assert_eq!(both.code, 2, "{}", both.errors);
}
