//! gRPC reflection.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request;
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::Frame;
use prost::Message as _;
use prost_reflect::FileDescriptor;
use prost_types::FileDescriptorSet;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;

use crate::body::trailers;

/// The proto file of ADS.
pub(crate) const ADS_PROTO: &str = "envoy/service/discovery/v3/ads.proto";

/// The paths of both versions of the service.
pub(crate) const REFLECTION_PATHS: [&str; 2] =
    ["/grpc.reflection.v1.ServerReflection/{method}", "/grpc.reflection.v1alpha.ServerReflection/{method}"];

/// Maximum size of a request for reflection in bytes: it has the name of a symbol or a file.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Maximum number of streams for reflection at a time. Anyone may open them.
const MAX_STREAMS: usize = 64;
/// Time limit of a stream.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);

/// The reflection service. It is built on first use, because descriptors need megabytes of memory and most servers never use
/// them.
#[derive(Clone)]
pub(crate) struct ReflectionService {
    files: Arc<[&'static str]>,
    routes: Arc<OnceLock<Routes>>,
    streams: Arc<Semaphore>,
}

impl ReflectionService {
    /// Serves the descriptors of these files.
    pub(crate) fn of(files: impl IntoIterator<Item = &'static str>) -> Self {
        let streams = Arc::new(Semaphore::new(MAX_STREAMS));
        Self { files: files.into_iter().collect(), routes: Arc::default(), streams }
    }

    fn routes(&self) -> &Routes {
        self.routes.get_or_init(|| {
            build(&self.files).unwrap_or_else(|error| {
                let status = Status::internal(format!("reflection is not available: {error}"));
                Routes::from(axum::Router::new().fallback(move || {
                    let status = status.clone();
                    async move { status.into_http::<Body>() }
                }))
            })
        })
    }
}

impl Service<Request> for ReflectionService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let Ok(permit) = self.streams.clone().try_acquire_owned() else {
            let refused = Status::resource_exhausted("too many streams for reflection, try again later");
            return Box::pin(std::future::ready(Ok(refused.into_http())));
        };
        let deadline = Box::pin(tokio::time::sleep(STREAM_TIMEOUT));
        let responding = self.routes().clone().call(request);
        Box::pin(async move {
            let response = responding.await?;
            Ok(response.map(|body| Body::new(LimitedBody { body, deadline: Some(deadline), _permit: permit })))
        })
    }
}

/// The body of a response that ends in time.
struct LimitedBody {
    body: Body,
    /// `None` once the body has ended because of it.
    deadline: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

impl http_body::Body for LimitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(deadline) = &mut self.deadline else { return Poll::Ready(None) };
        if deadline.as_mut().poll(cx).is_pending() {
            return Pin::new(&mut self.body).poll_frame(cx);
        }
        self.deadline = None;
        Poll::Ready(Some(Ok(trailers(&Status::deadline_exceeded("the stream for reflection is open for too long")))))
    }
}

/// The reason why reflection is not available.
#[derive(Debug, thiserror::Error)]
enum ReflectionError {
    #[error("read the descriptors: {0} is not in the descriptor pool")]
    UnknownFile(String),
    #[error("set up reflection v1: {0}")]
    V1(tonic_reflection::server::Error),
    #[error("set up reflection v1alpha: {0}")]
    V1Alpha(tonic_reflection::server::Error),
}

fn build(files: &[&str]) -> Result<Routes, ReflectionError> {
    let descriptors = descriptors(files)?;
    let builder = || tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(&descriptors);
    let v1 = builder().build_v1().map_err(ReflectionError::V1)?;
    let v1alpha = builder().build_v1alpha().map_err(ReflectionError::V1Alpha)?;
    Ok(Routes::new(v1.max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(v1alpha.max_decoding_message_size(MAX_REQUEST_BYTES)))
}

/// The encoded `FileDescriptorSet` of files and their dependencies, without the thousand other files of Envoy.
///
/// # Errors
/// The pool does not have a file.
fn descriptors(names: &[&str]) -> Result<Vec<u8>, ReflectionError> {
    let pool = sluice_proto::pool();
    let mut files = BTreeMap::new();
    for name in names {
        let file = pool.get_file_by_name(name).ok_or_else(|| ReflectionError::UnknownFile((*name).to_owned()))?;
        collect(&file, &mut files);
    }
    let file = files.into_values().map(|file| file.file_descriptor_proto().clone()).collect();
    Ok(FileDescriptorSet { file }.encode_to_vec())
}

fn collect(file: &FileDescriptor, files: &mut BTreeMap<String, FileDescriptor>) {
    if files.insert(file.name().to_owned(), file.clone()).is_none() {
        for dependency in file.dependencies() {
            collect(&dependency, files);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_complete_and_small() {
        let bytes =
            descriptors(&[ADS_PROTO, "istio/security/certificate_service.proto"]).expect("both are in the pool");
        let set = FileDescriptorSet::decode(bytes.as_slice()).expect("a descriptor set");
        assert!(set.file.len() < 100, "{} files", set.file.len());
        prost_reflect::DescriptorPool::from_file_descriptor_set(set).expect("complete");
    }
}
