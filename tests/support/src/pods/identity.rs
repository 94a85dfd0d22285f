//! Workload identities for the test mesh: a throw-away CA, and for each pod an SDS server on a Unix socket that serves
//! `default` and `ROOTCA` as an agent beside the proxy would (D02).

use std::path::{Path, PathBuf};
use std::pin::Pin;

use anyhow::{Context, Result};
use futures::{Stream, StreamExt};
use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};
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

    /// Certificate chain and key of a workload identity, PEM.
    fn issue(&self, spiffe_id: &str) -> Result<(String, String)> {
        let key = KeyPair::generate().context("make a workload key")?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(spiffe_id.try_into().context("a SPIFFE id is ASCII")?)];
        let certificate = params.signed_by(&key, &self.issuer).context("sign a workload certificate")?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// Serves the secrets of one identity on `socket` until the runtime ends.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn serve(&self, spiffe_id: &str, socket: &Path) -> Result<()> {
        let (chain, key) = self.issue(spiffe_id)?;
        let inline =
            |text: String| Some(DataSource { specifier: Some(Specifier::InlineString(text)), ..Default::default() });
        let secrets = vec![
            Secret {
                name: "default".to_owned(),
                r#type: Some(secret::Type::TlsCertificate(TlsCertificate {
                    certificate_chain: inline(chain),
                    private_key: inline(key),
                    ..Default::default()
                })),
            },
            Secret {
                name: "ROOTCA".to_owned(),
                r#type: Some(secret::Type::ValidationContext(CertificateValidationContext {
                    trusted_ca: inline(self.root_pem.clone()),
                    ..Default::default()
                })),
            },
        ];
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

fn answer(secrets: &[Secret], names: &[String]) -> DiscoveryResponse {
    let resources = secrets
        .iter()
        .filter(|secret| names.contains(&secret.name))
        .map(|secret| envoy_any(SECRET_TYPE, secret.encode_to_vec()));
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
