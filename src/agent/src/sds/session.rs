//! One SDS stream: its subscriptions and its responses.

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

use crate::identity::{SdsSecret, SecretStore};

pub(crate) const TYPE: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
/// Limit on subscriptions of one stream.
const MAX_SUBSCRIPTIONS: usize = 1000;

/// A request, in either protocol.
pub(super) struct SubscriptionRequest {
    pub(super) subscribe: Vec<String>,
    pub(super) unsubscribe: Vec<String>,
    /// If set, all other subscriptions end.
    pub(super) only: Option<Vec<String>>,
    /// Envoy rejects the last response for this reason.
    pub(super) nack: Option<String>,
}

/// State-of-the-world or incremental.
pub(super) trait SdsProtocol: Send + 'static {
    type Request: Send + 'static;
    type Response: Send + 'static;

    fn subscriptions(request: Self::Request) -> SubscriptionRequest;
    fn response(name: &str, secret: Any, version: u64) -> Self::Response;
}

/// State-of-the-world: a request lists all names; a response may contain one of them.
pub(super) struct Sotw;

impl SdsProtocol for Sotw {
    type Request = DiscoveryRequest;
    type Response = DiscoveryResponse;

    fn subscriptions(request: DiscoveryRequest) -> SubscriptionRequest {
        SubscriptionRequest {
            subscribe: request.resource_names.clone(),
            unsubscribe: Vec::new(),
            only: Some(request.resource_names),
            nack: request.error_detail.map(|detail| detail.message),
        }
    }

    fn response(_: &str, secret: Any, version: u64) -> DiscoveryResponse {
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

impl SdsProtocol for Delta {
    type Request = DeltaDiscoveryRequest;
    type Response = DeltaDiscoveryResponse;

    fn subscriptions(request: DeltaDiscoveryRequest) -> SubscriptionRequest {
        SubscriptionRequest {
            subscribe: request.resource_names_subscribe,
            unsubscribe: request.resource_names_unsubscribe,
            only: None,
            nack: request.error_detail.map(|detail| detail.message),
        }
    }

    fn response(name: &str, secret: Any, version: u64) -> DeltaDiscoveryResponse {
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

/// A new or changed secret.
pub(super) struct SecretUpdate {
    pub(super) name: String,
    pub(super) secret: Arc<SdsSecret>,
}

/// One stream.
pub(super) struct SdsSession<P> {
    secrets: SecretStore,
    subscribed: StreamMap<String, WatchStream<Option<Arc<SdsSecret>>>>,
    /// Version of the last response. It starts with the time of the stream, so that no version is sent to an Envoy twice.
    version: u64,
    protocol: PhantomData<P>,
}

impl<P: SdsProtocol> SdsSession<P> {
    pub(super) fn new(secrets: SecretStore) -> Self {
        let start = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let version = u64::try_from(start.as_micros()).unwrap_or_default();
        Self { secrets, subscribed: StreamMap::new(), version, protocol: PhantomData }
    }

    /// Handles a request. The secrets follow by [`SdsSession::changed`].
    ///
    /// # Errors
    /// The request names an unknown secret, or too many.
    pub(super) fn request(&mut self, request: P::Request) -> Result<Option<P::Response>, Status> {
        let SubscriptionRequest { subscribe, unsubscribe, only, nack } = P::subscriptions(request);
        if let Some(reason) = nack {
            warn!(target: "sds", reason, "Envoy rejected a secret");
        }
        if let Some(only) = only {
            let ended: Vec<String> = self.subscribed.keys().filter(|name| !only.contains(name)).cloned().collect();
            ended.iter().for_each(|name| drop(self.subscribed.remove(name)));
        }
        unsubscribe.iter().for_each(|name| drop(self.subscribed.remove(name)));
        for name in subscribe {
            if self.subscribed.contains_key(&name) {
                continue;
            }
            if self.subscribed.len() >= MAX_SUBSCRIPTIONS {
                return Err(Status::resource_exhausted(format!("more than {MAX_SUBSCRIPTIONS} secrets on one stream")));
            }
            let newest = self.secrets.watch(&name).map_err(|error| Status::not_found(error.to_string()))?;
            // Its first item is the current value.
            self.subscribed.insert(name, WatchStream::new(newest));
        }
        Ok(None)
    }

    /// The next secret to send.
    pub(super) async fn changed(&mut self) -> SecretUpdate {
        loop {
            match self.subscribed.next().await {
                Some((name, Some(secret))) => return SecretUpdate { name, secret },
                Some((_, None)) => {}
                None => return pending().await,
            }
        }
    }

    pub(super) fn push(&mut self, name: &str, secret: &SdsSecret) -> P::Response {
        self.version += 1;
        let secret = Any { type_url: TYPE.to_owned(), value: secret.encode(name).into() };
        P::response(name, secret, self.version)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;
    use crate::identity::ROOTS;
    use crate::metrics::Metrics;

    fn secrets() -> SecretStore {
        SecretStore::new(true, Duration::ZERO, Metrics::default())
    }

    fn request(names: &[&str]) -> DiscoveryRequest {
        DiscoveryRequest { resource_names: names.iter().map(|name| (*name).to_owned()).collect(), ..Default::default() }
    }

    fn root() -> Vec<u8> {
        let key = rcgen::KeyPair::generate().expect("a key");
        rcgen::CertificateParams::default().self_signed(&key).expect("a root").pem().into_bytes()
    }

    #[tokio::test]
    async fn subscribed_secret_is_sent_when_available_and_when_changed() {
        let secrets = secrets();
        let mut session = SdsSession::<Sotw>::new(secrets.clone());
        assert!(session.request(request(&[ROOTS])).expect("accepted").is_none());
        assert!(session.changed().now_or_never().is_none(), "there is no value yet");
        secrets.set_roots(root());
        let first = session.changed().await;
        let response = session.push(&first.name, &first.secret);
        assert_eq!((response.resources.len(), response.type_url.as_str()), (1, TYPE));
        // The acknowledgement repeats the subscription: no response follows.
        session.request(request(&[ROOTS])).expect("accepted");
        assert!(session.changed().now_or_never().is_none());
        secrets.set_roots(root());
        let second = session.changed().await;
        let next = session.push(&second.name, &second.secret);
        assert_ne!(next.version_info, response.version_info);
        assert_ne!(next.resources, response.resources);
    }

    #[tokio::test]
    async fn unsubscribed_secret_is_not_sent() {
        let secrets = secrets();
        let mut session = SdsSession::<Delta>::new(secrets.clone());
        let subscribe =
            DeltaDiscoveryRequest { resource_names_subscribe: vec![ROOTS.to_owned()], ..Default::default() };
        session.request(subscribe).expect("accepted");
        let unsubscribe =
            DeltaDiscoveryRequest { resource_names_unsubscribe: vec![ROOTS.to_owned()], ..Default::default() };
        session.request(unsubscribe).expect("accepted");
        secrets.set_roots(root());
        assert!(session.changed().now_or_never().is_none());
        let mut session = SdsSession::<Sotw>::new(secrets);
        session.request(request(&[ROOTS])).expect("accepted");
        session.request(request(&[])).expect("accepted");
        assert!(session.changed().now_or_never().is_none());
    }

    #[test]
    fn unknown_secret_ends_the_stream() {
        let status = SdsSession::<Sotw>::new(secrets()).request(request(&["other"])).expect_err("rejected");
        assert_eq!(status.code(), tonic::Code::NotFound);
    }
}
