//! SDS server for Envoy on a Unix socket, state-of-the-world and incremental (D02).

mod session;

use std::path::Path;
use std::pin::Pin;

use anyhow::{Context, Result};
use futures::Stream;
use sluice_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use sluice_proto::envoy::service::secret::v3::secret_discovery_service_server::{
    SecretDiscoveryService, SecretDiscoveryServiceServer,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::{info, warn};

use crate::identity::SecretStore;
use crate::metrics::Metrics;
use crate::serving::keep_serving;
use crate::unix::SocketUsers;
use session::{Delta, SdsSession, SecretUpdate, Sotw};

/// Serves secrets on a socket until the process ends.
///
/// # Errors
/// The agent cannot listen on the socket.
pub(crate) fn serve(secrets: SecretStore, socket: &Path, metrics: &Metrics) -> Result<()> {
    let listener =
        crate::unix::listen(socket, SocketUsers::Own).with_context(|| format!("listen on {}", socket.display()))?;
    info!(target: "sds", socket = %socket.display(), "listening");
    let (path, metrics) = (socket.to_owned(), metrics.listen());
    let bind = move || std::future::ready(crate::unix::listen(&path, SocketUsers::Own));
    keep_serving("SDS server", listener, bind, move |listener| {
        let service = SecretDiscoveryServiceServer::new(Service { secrets: secrets.clone() });
        let server = tonic::transport::Server::builder().add_service(service);
        let incoming = crate::unix::incoming(listener, "sds", &metrics);
        async move { Ok(server.serve_with_incoming(incoming).await?) }
    });
    Ok(())
}

struct Service {
    secrets: SecretStore,
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl SecretDiscoveryService for Service {
    type StreamSecretsStream = ResponseStream<DiscoveryResponse>;
    type DeltaSecretsStream = ResponseStream<DeltaDiscoveryResponse>;

    async fn stream_secrets(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamSecretsStream>, Status> {
        Ok(Response::new(run::<Sotw>(self.secrets.clone(), request.into_inner())))
    }

    async fn delta_secrets(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaSecretsStream>, Status> {
        Ok(Response::new(run::<Delta>(self.secrets.clone(), request.into_inner())))
    }

    async fn fetch_secrets(&self, _: Request<DiscoveryRequest>) -> Result<Response<DiscoveryResponse>, Status> {
        Err(Status::unimplemented("only streams of secrets are supported"))
    }
}

/// One stream: a response for each subscribed secret, and one for each change of it.
fn run<P: session::SdsProtocol>(
    secrets: SecretStore,
    mut requests: Streaming<P::Request>,
) -> ResponseStream<P::Response> {
    let (sender, responses) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        let mut session = SdsSession::<P>::new(secrets);
        loop {
            let response = tokio::select! {
                () = sender.closed() => return,
                request = requests.message() => match request {
                    Ok(Some(request)) => session.request(request),
                    Ok(None) | Err(_) => return,
                },
                SecretUpdate { name, secret } = session.changed() => Ok(Some(session.push(&name, &secret))),
            };
            let response = match response {
                Ok(None) => continue,
                Ok(Some(response)) => Ok(response),
                Err(status) => {
                    warn!(target: "sds", reason = status.message(), "SDS stream is closed");
                    Err(status)
                }
            };
            let is_end = response.is_err();
            if sender.send(response).await.is_err() || is_end {
                return;
            }
        }
    });
    Box::pin(ReceiverStream::new(responses))
}
