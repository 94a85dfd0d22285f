//! Secrets for Envoy on a Unix socket, state of the world and incremental (D02).

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
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};
use tracing::{info, warn};

use crate::identity::Secrets;
use session::{Change, Delta, Session, Sotw};

/// Serves secrets on a socket until the process ends.
///
/// # Errors
/// The socket cannot be listened on.
pub(crate) fn serve(secrets: Secrets, socket: &Path) -> Result<()> {
    let listener = crate::unix::listen(socket).with_context(|| format!("listen on {}", socket.display()))?;
    info!(target: "sds", socket = %socket.display(), "listening");
    let server =
        tonic::transport::Server::builder().add_service(SecretDiscoveryServiceServer::new(Service { secrets }));
    tokio::spawn(async move {
        if let Err(error) = server.serve_with_incoming(UnixListenerStream::new(listener)).await {
            warn!(target: "sds", "secrets are no longer served: {error}");
        }
    });
    Ok(())
}

struct Service {
    secrets: Secrets,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl SecretDiscoveryService for Service {
    type StreamSecretsStream = Answers<DiscoveryResponse>;
    type DeltaSecretsStream = Answers<DeltaDiscoveryResponse>;

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
        Err(Status::unimplemented("secrets are streamed"))
    }
}

/// One stream: requests in, answers out, and one for each change of what was asked for.
fn run<P: session::Protocol>(secrets: Secrets, mut requests: Streaming<P::Request>) -> Answers<P::Response> {
    let (sender, answers) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        let mut session = Session::<P>::new(secrets);
        loop {
            let answer = tokio::select! {
                () = sender.closed() => return,
                request = requests.message() => match request {
                    Ok(Some(request)) => session.request(request),
                    Ok(None) | Err(_) => return,
                },
                Change { name, secret } = session.changed() => Ok(Some(session.push(&name, &secret))),
            };
            let answer = match answer {
                Ok(None) => continue,
                Ok(Some(answer)) => Ok(answer),
                Err(status) => {
                    warn!(target: "sds", "a stream is ended: {}", status.message());
                    Err(status)
                }
            };
            let ended = answer.is_err();
            if sender.send(answer).await.is_err() || ended {
                return;
            }
        }
    });
    Box::pin(ReceiverStream::new(answers))
}
