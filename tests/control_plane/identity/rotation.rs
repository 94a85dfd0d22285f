//! Certificates and authorities that change while the control plane runs.

use sluice_testkit::pods::identity::Authority;
use sluice_testkit::secure::{CertificateRequest, ClientTls, signing_request};

use super::mesh::{CART, IdentityFixture, until};

/// Writes an authority of an organization into a directory. Returns its certificate.
fn plug_in(organization: &Authority, directory: &std::path::Path, name: &str) -> String {
    organization.plug_in(directory, name, organization.root()).expect("plugged in")
}

async fn chain(mesh: &IdentityFixture) -> Vec<String> {
    let (_, csr) = signing_request().expect("a request");
    let channel = mesh.connect(&ClientTls::default()).await;
    CertificateRequest::with_token(&csr, &mesh.token(CART)).send(&channel).await.expect("issued")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugged_in_authority_changes_beneath_its_root() {
    let mesh = IdentityFixture::start(&[]).await;
    let organization = Authority::new().expect("a root");
    let first = plug_in(&organization, &mesh.authority(), "first");
    let mesh = mesh.restart(&[]).await;
    let issued = chain(&mesh).await;
    assert_eq!(issued.len(), 4, "the certificate, the authority, the root in the chain, the roots");
    assert_eq!(issued[1].trim(), first.trim());

    let second = plug_in(&organization, &mesh.authority(), "second");
    until("the second authority signs", async || (chain(&mesh).await[1].trim() == second.trim()).then_some(())).await;
    // The server has a certificate of the authority, otherwise the handshakes would fail.
    until("the server's certificate is new", async || {
        (mesh.logged("issued the server certificate").len() > 1).then_some(())
    })
    .await;

    // Another root is rejected, because workloads would no longer trust each other.
    let root = mesh.root();
    plug_in(&Authority::new().expect("a root"), &mesh.authority(), "third");
    until("the third is rejected", async || {
        mesh.logged("changed certificate authority is invalid, the previous one stays in use").pop()
    })
    .await;
    let address = mesh.server.secure.expect("the port is open");
    let channel = sluice_testkit::secure::connect(address, "localhost", &root, &ClientTls::default()).await;
    let (_, csr) = signing_request().expect("a request");
    let issued = CertificateRequest::with_token(&csr, &mesh.token(CART))
        .send(&channel.expect("TLS handshake"))
        .await
        .expect("issued");
    assert_eq!(issued[1].trim(), second.trim());
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_material_fails_the_start() {
    let mesh = IdentityFixture::start(&[]).await;
    let authority = mesh.authority();
    std::fs::remove_file(authority.join("cert-chain.pem")).expect("remove a file");
    let options = sluice_testkit::server::Options {
        args: vec!["--secureGRPCAddr=127.0.0.1:0".to_owned()],
        env: vec![("ROOT_CA_DIR".to_owned(), authority.display().to_string())],
        ..sluice_testkit::server::Options::new(&authority)
    };
    let error = match sluice_testkit::server::Sluiced::start(&options).await {
        Ok(_) => panic!("it starts"),
        Err(error) => format!("{error:#}"),
    };
    assert!(error.contains("exit status: 7"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugged_in_server_certificate_is_served_and_reloaded() {
    let organization = Authority::new().expect("a root");
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let write = || {
        let pair = organization.issue_hosts(&["istiod.istio-system.svc".to_owned()]);
        let (certificate, key) = pair.expect("a certificate");
        std::fs::write(path("tls.key"), key).expect("write the key");
        std::fs::write(path("tls.crt"), certificate).expect("write the certificate");
    };
    write();
    std::fs::write(path("ca.crt"), organization.root()).expect("write the root");
    let arguments = ["--tlsCertFile", "--tlsKeyFile", "--caCertFile"].into_iter().zip(["tls.crt", "tls.key", "ca.crt"]);
    let arguments: Vec<String> = arguments.map(|(flag, file)| format!("{flag}={}", path(file))).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mesh = IdentityFixture::start(&arguments).await;
    let address = mesh.server.secure.expect("the port is open");
    let connect = async || {
        sluice_testkit::secure::connect(address, "istiod.istio-system.svc", organization.root(), &ClientTls::default())
            .await
    };
    let (_, csr) = signing_request().expect("a request");
    let issued =
        CertificateRequest::with_token(&csr, &mesh.token(CART)).send(&connect().await.expect("TLS handshake")).await;
    assert_eq!(issued.expect("issued")[1], mesh.root(), "the authority still issues the certificates of workloads");
    mesh.try_connect(&ClientTls::default()).await.expect_err("its certificate is not of the authority");
    write();
    connect().await.expect("TLS handshake with the old or the new certificate");
}
