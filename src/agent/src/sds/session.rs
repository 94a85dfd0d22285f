//! One stream of secrets: what is asked for, and what is sent.

use std::future::pending;
use std::marker::PhantomData;
use std::sync::Arc;

use futures::StreamExt as _;
use sluice_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use sluice_proto::google::protobuf::Any;
use tokio_stream::StreamMap;
use tokio_stream::wrappers::WatchStream;
use tonic::Status;
use tracing::warn;

use crate::identity::{Secret, Secrets};

pub(crate) const TYPE: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
/// More names than this on one stream are a mistake.
const MOST_NAMES: usize = 1000;

/// What a request says, in either protocol.
pub(super) struct Asked {
    pub(super) subscribe: Vec<String>,
    pub(super) unsubscribe: Vec<String>,
    /// The only names that are wanted from now on.
    pub(super) only: Option<Vec<String>>,
    pub(super) refused: Option<String>,
}

/// State of the world or incremental.
pub(super) trait Protocol: Send + 'static {
    type Request: Send + 'static;
    type Response: Send + 'static;

    fn asked(request: Self::Request) -> Asked;
    fn answer(name: &str, secret: Any, version: u64) -> Self::Response;
}

/// State of the world: a request has all names, but an answer may have one of them.
pub(super) struct Sotw;

impl Protocol for Sotw {
    type Request = DiscoveryRequest;
    type Response = DiscoveryResponse;

    fn asked(request: DiscoveryRequest) -> Asked {
        Asked {
            subscribe: request.resource_names.clone(),
            unsubscribe: Vec::new(),
            only: Some(request.resource_names),
            refused: request.error_detail.map(|detail| detail.message),
        }
    }

    fn answer(_: &str, secret: Any, version: u64) -> DiscoveryResponse {
        DiscoveryResponse {
            version_info: version.to_string(),
            nonce: version.to_string(),
            type_url: TYPE.to_owned(),
            resources: vec![secret],
            ..Default::default()
        }
    }
}

/// Incremental.
pub(super) struct Delta;

impl Protocol for Delta {
    type Request = DeltaDiscoveryRequest;
    type Response = DeltaDiscoveryResponse;

    fn asked(request: DeltaDiscoveryRequest) -> Asked {
        Asked {
            subscribe: request.resource_names_subscribe,
            unsubscribe: request.resource_names_unsubscribe,
            only: None,
            refused: request.error_detail.map(|detail| detail.message),
        }
    }

    fn answer(name: &str, secret: Any, version: u64) -> DeltaDiscoveryResponse {
        let resource = Resource {
            name: name.to_owned(),
            version: version.to_string(),
            resource: Some(secret),
            ..Default::default()
        };
        DeltaDiscoveryResponse {
            nonce: version.to_string(),
            type_url: TYPE.to_owned(),
            resources: vec![resource],
            ..Default::default()
        }
    }
}

/// A secret that is there, or is another than before.
pub(super) struct Change {
    pub(super) name: String,
    pub(super) secret: Arc<Secret>,
}

/// One stream.
pub(super) struct Session<P> {
    secrets: Secrets,
    wanted: StreamMap<String, WatchStream<Option<Arc<Secret>>>>,
    /// Counts answers; with the stream's own beginning it is never repeated to one Envoy.
    version: u64,
    protocol: PhantomData<P>,
}

impl<P: Protocol> Session<P> {
    pub(super) fn new(secrets: Secrets) -> Self {
        let begun = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let version = u64::try_from(begun.as_micros()).unwrap_or_default();
        Self { secrets, wanted: StreamMap::new(), version, protocol: PhantomData }
    }

    /// Takes a request in. What it asks for follows by [`Session::changed`].
    ///
    /// # Errors
    /// It asks for what there is not.
    pub(super) fn request(&mut self, request: P::Request) -> Result<Option<P::Response>, Status> {
        let Asked { subscribe, unsubscribe, only, refused } = P::asked(request);
        if let Some(reason) = refused {
            warn!(target: "sds", "Envoy refused a secret: {reason}");
        }
        if let Some(only) = only {
            let gone: Vec<String> = self.wanted.keys().filter(|name| !only.contains(name)).cloned().collect();
            gone.iter().for_each(|name| drop(self.wanted.remove(name)));
        }
        unsubscribe.iter().for_each(|name| drop(self.wanted.remove(name)));
        for name in subscribe {
            if self.wanted.contains_key(&name) {
                continue;
            }
            if self.wanted.len() >= MOST_NAMES {
                return Err(Status::resource_exhausted(format!("more than {MOST_NAMES} secrets")));
            }
            let newest = self.secrets.watch(&name).map_err(|error| Status::not_found(error.to_string()))?;
            // Its first item is what there is already.
            self.wanted.insert(name, WatchStream::new(newest));
        }
        Ok(None)
    }

    /// The next secret that is to be sent.
    pub(super) async fn changed(&mut self) -> Change {
        loop {
            match self.wanted.next().await {
                Some((name, Some(secret))) => return Change { name, secret },
                Some((_, None)) => {}
                None => return pending().await,
            }
        }
    }

    pub(super) fn push(&mut self, name: &str, secret: &Secret) -> P::Response {
        self.version += 1;
        let secret = Any { type_url: TYPE.to_owned(), value: secret.encode(name).into() };
        P::answer(name, secret, self.version)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;
    use crate::identity::ROOTS;
    use crate::metrics::Metrics;

    fn secrets() -> Secrets {
        Secrets::new(true, Duration::ZERO, Metrics::default())
    }

    fn ask(names: &[&str]) -> DiscoveryRequest {
        DiscoveryRequest { resource_names: names.iter().map(|name| (*name).to_owned()).collect(), ..Default::default() }
    }

    fn root() -> Vec<u8> {
        let key = rcgen::KeyPair::generate().expect("a key");
        rcgen::CertificateParams::default().self_signed(&key).expect("a root").pem().into_bytes()
    }

    #[tokio::test]
    async fn what_is_asked_for_comes_when_it_is_there_and_again_when_it_changes() {
        let secrets = secrets();
        let mut session = Session::<Sotw>::new(secrets.clone());
        assert!(session.request(ask(&[ROOTS])).expect("taken").is_none());
        assert!(session.changed().now_or_never().is_none(), "there is none yet");
        secrets.set_roots(root());
        let first = session.changed().await;
        let answer = session.push(&first.name, &first.secret);
        assert_eq!((answer.resources.len(), answer.type_url.as_str()), (1, TYPE));
        // The acknowledgement asks for the same: nothing is sent again.
        session.request(ask(&[ROOTS])).expect("taken");
        assert!(session.changed().now_or_never().is_none());
        secrets.set_roots(root());
        let second = session.changed().await;
        let next = session.push(&second.name, &second.secret);
        assert_ne!(next.version_info, answer.version_info);
        assert_ne!(next.resources, answer.resources);
    }

    #[tokio::test]
    async fn what_is_no_longer_asked_for_is_not_sent() {
        let secrets = secrets();
        let mut session = Session::<Delta>::new(secrets.clone());
        let subscribe =
            DeltaDiscoveryRequest { resource_names_subscribe: vec![ROOTS.to_owned()], ..Default::default() };
        session.request(subscribe).expect("taken");
        let unsubscribe =
            DeltaDiscoveryRequest { resource_names_unsubscribe: vec![ROOTS.to_owned()], ..Default::default() };
        session.request(unsubscribe).expect("taken");
        secrets.set_roots(root());
        assert!(session.changed().now_or_never().is_none());
        let mut session = Session::<Sotw>::new(secrets);
        session.request(ask(&[ROOTS])).expect("taken");
        session.request(ask(&[])).expect("taken");
        assert!(session.changed().now_or_never().is_none());
    }

    #[test]
    fn what_there_is_not_ends_the_stream() {
        let status = Session::<Sotw>::new(secrets()).request(ask(&["other"])).expect_err("refused");
        assert_eq!(status.code(), tonic::Code::NotFound);
    }
}
