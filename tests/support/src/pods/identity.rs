//! Workload identities for the test mesh: a throw-away CA, and for each pod an SDS server on a Unix socket that serves
//! `default` and `ROOTCA` as an agent beside the proxy would (D02).

use std::path::{Path, PathBuf};
use std::pin::Pin;

use anyhow::{Context, Result};
use futures::{Stream, StreamExt};
use prost::Message;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use sluice_proto::envoy::config::core::v3::{DataSource, data_source::Specifier};
use sluice_proto::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret, TlsCertificate, secret,
};
use sluice_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use sluice_proto::envoy::service::secret::v3::secret_discovery_service_server::{
    SecretDiscoveryService, SecretDiscoveryServiceServer,
};
use tokio::net::UnixListener;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, Streaming};

const SECRET_TYPE: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";

/// A certificate authority of one test run.
pub struct Authority {
    root_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new root.
    ///
    /// # Errors
    /// Key generation fails.
    pub fn new() -> Result<Self> {
        let key = KeyPair::generate().context("make the root key")?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::OrganizationName, "cluster.local");
        let root_pem = params.self_signed(&key).context("sign the root")?.pem();
        Ok(Self { root_pem, issuer: Issuer::new(params, key) })
    }

    /// The root certificate, PEM.
    #[must_use]
    pub fn root(&self) -> &str {
        &self.root_pem
    }

    /// Certificate and key of a workload identity, PEM.
    ///
    /// # Errors
    /// Signing fails.
    pub fn issue(&self, spiffe_id: &str) -> Result<(String, String)> {
        self.sign(vec![SanType::URI(spiffe_id.try_into().context("a SPIFFE id is ASCII")?)])
    }

    /// Certificate and key of hosts, PEM.
    ///
    /// # Errors
    /// Key generation fails, or one is no host name.
    pub fn issue_hosts(&self, hosts: &[String]) -> Result<(String, String)> {
        let name = |host: &String| Ok(SanType::DnsName(host.as_str().try_into().context("a host name is ASCII")?));
        self.sign(hosts.iter().map(name).collect::<Result<_>>()?)
    }

    fn sign(&self, names: Vec<SanType>) -> Result<(String, String)> {
        let key = KeyPair::generate().context("make a key")?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).context("sign a certificate")?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// Serves the secrets of one identity on `socket` until the runtime ends.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn serve(&self, spiffe_id: &str, socket: &Path) -> Result<()> {
        let (chain, key) = self.issue(spiffe_id)?;
        let secrets = vec![key_pair("default", chain, key), roots("ROOTCA", self.root_pem.clone())];
        let listener = UnixListener::bind(socket).with_context(|| format!("listen on {}", socket.display()))?;
        // Envoy runs as another user.
        std::fs::set_permissions(socket, std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .context("open the socket")?;
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(SecretDiscoveryServiceServer::new(Secrets { secrets }))
                .serve_with_incoming(UnixListenerStream::new(listener)),
        );
        Ok(())
    }
}

/// The certificates of a PEM text.
///
/// # Errors
/// It is not one.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().context("read certificates")
}

/// The private key of a PEM text.
///
/// # Errors
/// It is not one.
pub fn private_key(pem: &str) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).context("read a key")
}

/// Where a pod's Envoy expects its SDS server, given the pod's directory.
#[must_use]
pub fn socket_path(directory: &Path) -> PathBuf {
    directory.join("sds.sock")
}

struct Secrets {
    secrets: Vec<Secret>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl SecretDiscoveryService for Secrets {
    type StreamSecretsStream = Answers<DiscoveryResponse>;
    type DeltaSecretsStream = Answers<DeltaDiscoveryResponse>;

    async fn stream_secrets(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamSecretsStream>, Status> {
        let secrets = self.secrets.clone();
        let answers = request.into_inner().filter_map(move |request| {
            let answer = match request {
                // Nothing changes during a test, so an acknowledgement needs no answer.
                Ok(request) if request.version_info.is_empty() => Some(Ok(answer(&secrets, &request.resource_names))),
                Ok(_) => None,
                Err(status) => Some(Err(status)),
            };
            std::future::ready(answer)
        });
        // A stream that ends would make Envoy reconnect: stay open as long as the client does.
        Ok(Response::new(Box::pin(answers)))
    }

    async fn delta_secrets(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaSecretsStream>, Status> {
        Err(Status::unimplemented("secrets are served state of the world"))
    }

    async fn fetch_secrets(&self, request: Request<DiscoveryRequest>) -> Result<Response<DiscoveryResponse>, Status> {
        Ok(Response::new(answer(&self.secrets, &request.into_inner().resource_names)))
    }
}

fn inline(text: String) -> Option<DataSource> {
    Some(DataSource { specifier: Some(Specifier::InlineString(text)), ..Default::default() })
}

fn key_pair(name: &str, chain: String, key: String) -> Secret {
    let pair =
        TlsCertificate { certificate_chain: inline(chain), private_key: inline(key), ..TlsCertificate::default() };
    Secret { name: name.to_owned(), r#type: Some(secret::Type::TlsCertificate(pair)) }
}

fn roots(name: &str, pem: String) -> Secret {
    let context = CertificateValidationContext { trusted_ca: inline(pem), ..CertificateValidationContext::default() };
    Secret { name: name.to_owned(), r#type: Some(secret::Type::ValidationContext(context)) }
}

/// Certificates that objects name by path come from the agent too: `file-cert:CHAIN~KEY`, `file-root:ROOTS`.
fn from_file(name: &str) -> Option<Secret> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    if let Some((chain, key)) = name.strip_prefix("file-cert:").and_then(|paths| paths.split_once('~')) {
        return Some(key_pair(name, read(chain)?, read(key)?));
    }
    Some(roots(name, read(name.strip_prefix("file-root:")?)?))
}

fn answer(secrets: &[Secret], names: &[String]) -> DiscoveryResponse {
    let find = |name: &String| secrets.iter().find(|secret| secret.name == *name).cloned().or_else(|| from_file(name));
    let resources = names.iter().filter_map(find).map(|secret| envoy_any(SECRET_TYPE, secret.encode_to_vec()));
    DiscoveryResponse {
        version_info: "1".to_owned(),
        nonce: "1".to_owned(),
        type_url: SECRET_TYPE.to_owned(),
        resources: resources.collect(),
        ..Default::default()
    }
}

fn envoy_any(type_url: &str, value: Vec<u8>) -> sluice_proto::google::protobuf::Any {
    sluice_proto::google::protobuf::Any { type_url: type_url.to_owned(), value }
}
