//! What changes while the control plane runs.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use sluice_testkit::secure::{Ask, Presented, signing_request};

use crate::mesh::{CART, Mesh, until};

/// A root of an organization that plugs its authorities in.
struct Organization {
    issuer: Issuer<'static, KeyPair>,
    root: String,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Organization {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let params = params(name);
        let root = params.self_signed(&key).expect("a root").pem();
        Self { issuer: Issuer::new(params, key), root }
    }

    /// Puts a new authority into a directory; gives its certificate.
    fn plug_in(&self, directory: &std::path::Path, name: &str) -> String {
        let key = KeyPair::generate().expect("a key");
        let certificate = params(name).signed_by(&key, &self.issuer).expect("a certificate").pem();
        std::fs::create_dir_all(directory).expect("the directory");
        let chain = certificate.clone() + &self.root;
        for (file, text) in [
            ("root-cert.pem", &self.root),
            ("cert-chain.pem", &chain),
            ("ca-key.pem", &key.serialize_pem()),
            ("ca-cert.pem", &certificate),
        ] {
            std::fs::write(directory.join(file), text).expect("write a file");
        }
        let _ = std::fs::remove_file(directory.join("istio-generated"));
        certificate
    }
}

async fn chain(mesh: &Mesh) -> Vec<String> {
    let (_, csr) = signing_request().expect("a request");
    let channel = mesh.connect(&Presented::default()).await;
    Ask::bearing(&csr, &mesh.token(CART)).send(&channel).await.expect("issued")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugged_in_authority_changes_beneath_its_root() {
    let mesh = Mesh::start(&[]).await;
    let organization = Organization::new("organization");
    let first = organization.plug_in(&mesh.authority(), "first");
    let mesh = mesh.restart(&[]).await;
    let issued = chain(&mesh).await;
    assert_eq!(issued.len(), 4, "the certificate, the authority, the root in the chain, the roots");
    assert_eq!(issued[1].trim(), first.trim());

    let second = organization.plug_in(&mesh.authority(), "second");
    until("the second authority signs", async || (chain(&mesh).await[1].trim() == second.trim()).then_some(())).await;
    // The server itself shows a certificate of it: the handshakes above would fail otherwise, and they go on.
    until("the server's certificate is new", async || {
        (mesh.logged("issued the server's certificate").len() > 1).then_some(())
    })
    .await;

    // Another root is not taken, or workloads would not trust each other any more.
    let root = mesh.root();
    Organization::new("stranger").plug_in(&mesh.authority(), "third");
    until("the third is refused", async || mesh.logged("the certificate authority stays as it was").pop()).await;
    let address = mesh.server.secure.expect("the port is open");
    let channel = sluice_testkit::secure::connect(address, "localhost", &root, &Presented::default()).await;
    let (_, csr) = signing_request().expect("a request");
    let issued = Ask::bearing(&csr, &mesh.token(CART)).send(&channel.expect("hands are shaken")).await.expect("issued");
    assert_eq!(issued[1].trim(), second.trim());
}

#[tokio::test(flavor = "multi_thread")]
async fn material_that_cannot_be_used_stops_the_start() {
    let mesh = Mesh::start(&[]).await;
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
async fn a_certificate_of_somebody_elses_is_shown_and_read_again() {
    let organization = Organization::new("web");
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let write = || {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["istiod.istio-system.svc".to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &organization.issuer).expect("a certificate").pem();
        std::fs::write(path("tls.key"), key.serialize_pem()).expect("write the key");
        std::fs::write(path("tls.crt"), certificate).expect("write the certificate");
    };
    write();
    std::fs::write(path("ca.crt"), &organization.root).expect("write the root");
    let arguments = ["--tlsCertFile", "--tlsKeyFile", "--caCertFile"].into_iter().zip(["tls.crt", "tls.key", "ca.crt"]);
    let arguments: Vec<String> = arguments.map(|(flag, file)| format!("{flag}={}", path(file))).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mesh = Mesh::start(&arguments).await;
    let address = mesh.server.secure.expect("the port is open");
    let connect = async || {
        sluice_testkit::secure::connect(address, "istiod.istio-system.svc", &organization.root, &Presented::default())
            .await
    };
    let (_, csr) = signing_request().expect("a request");
    let issued = Ask::bearing(&csr, &mesh.token(CART)).send(&connect().await.expect("hands are shaken")).await;
    assert_eq!(issued.expect("issued")[1], mesh.root(), "workloads are of the authority all the same");
    mesh.try_connect(&Presented::default()).await.expect_err("it shows no certificate of the authority");
    write();
    connect().await.expect("hands are shaken, whichever it is");
}
