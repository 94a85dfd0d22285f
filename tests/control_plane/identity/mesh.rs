//! A control plane without a cluster, with its own authority and token issuer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sluice_ca::{Authority, Material};
use sluice_testkit::pods::identity::certificates;
use sluice_testkit::pods::token::TokenIssuer;
use sluice_testkit::secure::{self, ClientTls};
use sluice_testkit::server::{Options, Sluiced};
use sluice_testkit::wait::until_within;
use tonic::transport::Channel;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The service account of most tests.
pub(crate) const CART: &str = "system:serviceaccount:shop:cart";

const OBJECTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  clusterIP: 10.1.0.1
  ports: [{name: http, port: 80}]
";

pub(crate) struct IdentityFixture {
    pub(crate) server: Sluiced,
    pub(crate) issuer: TokenIssuer,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    directory: tempfile::TempDir,
}

impl IdentityFixture {
    /// A new authority in a directory of its own, and further arguments.
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[]).await
    }

    /// The same with environment variables.
    pub(crate) async fn start_with(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let objects = directory.path().join("objects");
        std::fs::create_dir(&objects).expect("a directory of objects");
        std::fs::write(objects.join("objects.yaml"), OBJECTS).expect("write objects");
        let issuer = TokenIssuer::new().expect("an issuer");
        std::fs::write(directory.path().join("keys.json"), issuer.key_set()).expect("write keys");
        let other = TokenIssuer::new().expect("an issuer");
        std::fs::write(directory.path().join("east.json"), other.key_set()).expect("write keys");
        let path = |name: &str| directory.path().join(name).display().to_string();
        let mut all = vec![
            "--secureGRPCAddr=127.0.0.1:0".to_owned(),
            "--createCA".to_owned(),
            format!("--tokenKeys={}", path("keys.json")),
            format!("--tokenKeys=east={}", path("east.json")),
            "--tokenIssuer=https://issuer".to_owned(),
        ];
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let environment: Vec<(String, String)> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let server = launch(&directory, &all, &environment).await;
        Self { server, issuer, arguments: all, environment, directory }
    }

    /// The same with further arguments, as another process.
    pub(crate) async fn restart(mut self, arguments: &[&str]) -> Self {
        self.server.stop(Duration::from_secs(20)).await.expect("it stops");
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let server = launch(&self.directory, &self.arguments, &self.environment).await;
        Self { server, ..self }
    }

    /// The same with another trust domain, as another process.
    pub(crate) async fn rename(self, trust_domain: &str) -> Self {
        let file = self.directory.path().join("mesh.yaml");
        std::fs::write(&file, format!("trustDomain: {trust_domain}\n")).expect("write the mesh config");
        self.restart(&[&format!("--meshConfig={}", file.display())]).await
    }

    /// Directory of the objects.
    pub(crate) fn objects(&self) -> PathBuf {
        self.directory.path().join("objects")
    }

    /// Directory of the authority.
    pub(crate) fn authority(&self) -> PathBuf {
        self.directory.path().join("authority")
    }

    /// The authority itself, to issue certificates that the server would not issue.
    pub(crate) fn signing_authority(&self) -> Authority {
        let read = |name: &str| std::fs::read_to_string(self.authority().join(name)).expect("the authority is kept");
        let material = Material {
            certificate: read("ca-cert.pem"),
            key: read("ca-key.pem").into(),
            roots: read("root-cert.pem"),
            ..Material::default()
        };
        Authority::new(&material, now()).expect("an authority")
    }

    pub(crate) fn root(&self) -> String {
        std::fs::read_to_string(self.authority().join("root-cert.pem")).expect("read the root")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).expect("read the log")
    }

    /// Lines of the log with a message.
    pub(crate) fn logged(&self, message: &str) -> Vec<String> {
        self.log().lines().filter(|line| line.contains(message)).map(str::to_owned).collect()
    }

    pub(crate) async fn try_connect(&self, presented: &ClientTls) -> anyhow::Result<Channel> {
        let address = self.server.secure.expect("the port is open");
        secure::connect(address, "istiod.istio-system.svc", &self.root(), presented).await
    }

    pub(crate) async fn connect(&self, presented: &ClientTls) -> Channel {
        self.try_connect(presented).await.expect("TLS handshake")
    }

    /// Claims of a token that is valid for some seconds.
    pub(crate) fn claims(&self, subject: &str, seconds: i64) -> Value {
        json!({"iss": "https://issuer", "sub": subject, "aud": ["istio-ca"], "exp": now() + seconds})
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        self.issuer.sign(claims).expect("a token")
    }

    /// A valid token.
    pub(crate) fn token(&self, subject: &str) -> String {
        self.sign(&self.claims(subject, 600))
    }

    /// Metrics by name, including labels.
    pub(crate) async fn metrics(&self) -> BTreeMap<String, f64> {
        let (_, text) = self.server.get("/metrics").await.expect("metrics");
        let lines = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        lines.map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).collect()
    }
}

async fn launch(directory: &tempfile::TempDir, arguments: &[String], more: &[(String, String)]) -> Sluiced {
    let mut env = vec![("ROOT_CA_DIR".to_owned(), directory.path().join("authority").display().to_string())];
    env.extend(more.iter().cloned());
    let options = Options {
        args: arguments.to_vec(),
        env,
        log: Some(directory.path().join("log")),
        ..Options::new(&directory.path().join("objects"))
    };
    Sluiced::start(&options).await.expect("it starts")
}

pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    i64::try_from(since.as_secs()).expect("a time")
}

/// The URIs in the first certificate of a PEM text.
pub(crate) fn uris(pem: &str) -> Vec<String> {
    let der = certificates(pem).expect("a certificate").remove(0);
    let (_, certificate) = X509Certificate::from_der(&der).expect("a certificate");
    let names = certificate.subject_alternative_name().expect("well-formed").expect("names").value;
    let one = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => (*uri).to_owned(),
        other => panic!("{other}"),
    };
    names.general_names.iter().map(one).collect()
}

/// As [`until_within`], with a limit of 20 s.
pub(crate) async fn until<T>(what: &str, poll: impl AsyncFnMut() -> Option<T>) -> T {
    until_within(Duration::from_secs(20), what, poll).await
}
