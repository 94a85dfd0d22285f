//! Services of extension providers: telemetry collectors and authorization servers.

use envoy_types::pb::envoy::config::core::v3::GrpcService;
use envoy_types::pb::envoy::config::core::v3::grpc_service::{EnvoyGrpc, TargetSpecifier};
use serde::Serialize;
use sluice_model::{ProviderKind, ProviderService, Text};

/// Host and cluster of an extension provider's service.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Collector {
    /// Its host.
    pub host: Text,
    /// The cluster that reaches its port.
    pub cluster: Text,
}

impl Collector {
    /// The service as the target of gRPC calls.
    pub(crate) fn grpc_service(&self) -> GrpcService {
        let target = EnvoyGrpc {
            cluster_name: self.cluster.to_string(),
            authority: self.host.to_string(),
            ..EnvoyGrpc::default()
        };
        GrpcService { target_specifier: Some(TargetSpecifier::EnvoyGrpc(target)), ..GrpcService::default() }
    }
}

/// The services of a provider. [`ListenerSettings::collectors`](super::ListenerSettings::collectors) must contain those
/// that exist.
#[must_use]
pub fn collector_services(kind: &ProviderKind) -> Vec<&ProviderService> {
    match kind {
        ProviderKind::Zipkin { service, .. }
        | ProviderKind::Datadog { service, .. }
        | ProviderKind::SkyWalking { service, .. }
        | ProviderKind::HttpAccessLogService { service, .. }
        | ProviderKind::TcpAccessLogService { service, .. }
        | ProviderKind::OpenTelemetryLog { service, .. }
        | ProviderKind::Sds { service, .. } => vec![service],
        ProviderKind::OpenTelemetry(otel) => {
            let sampler = otel.dynatrace_sampler.as_ref().and_then(|sampler| sampler.api.as_ref());
            std::iter::once(&otel.service).chain(sampler.map(|(service, _)| service)).collect()
        }
        other => authorizer_service(other).into_iter().collect(),
    }
}

/// The service of an authorization provider; `None` for other providers.
#[must_use]
pub(crate) fn authorizer_service(kind: &ProviderKind) -> Option<&ProviderService> {
    match kind {
        ProviderKind::ExtAuthzHttp(provider) => Some(&provider.0.service),
        ProviderKind::ExtAuthzGrpc(provider) => Some(&provider.service),
        _ => None,
    }
}
