//! gRPC reflection.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use axum::extract::Request;
use prost::Message as _;
use prost_reflect::FileDescriptor;
use prost_types::FileDescriptorSet;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;

/// The proto file of ADS.
pub(crate) const ADS_PROTO: &str = "envoy/service/discovery/v3/ads.proto";

/// The paths of both versions of the service.
pub(crate) const REFLECTION_PATHS: [&str; 2] =
    ["/grpc.reflection.v1.ServerReflection/{method}", "/grpc.reflection.v1alpha.ServerReflection/{method}"];

/// The reflection service. It is built on first use, because descriptors need megabytes of memory and most servers never use
/// them.
#[derive(Clone)]
pub(crate) struct ReflectionService {
    files: Arc<[&'static str]>,
    routes: Arc<OnceLock<Routes>>,
}

impl ReflectionService {
    /// Serves the descriptors of these files.
    pub(crate) fn of(files: impl IntoIterator<Item = &'static str>) -> Self {
        Self { files: files.into_iter().collect(), routes: Arc::default() }
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
    type Future = <Routes as Service<Request>>::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        self.routes().clone().call(request)
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
    Ok(Routes::new(v1).add_service(builder().build_v1alpha().map_err(ReflectionError::V1Alpha)?))
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
