//! Inbound routes, to the application of a sidecar.

use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::{ClusterSpecifier, MaxStreamDuration};
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::{Decorator, Route, RouteAction, RouteMatch};
use envoy_types::pb::google::protobuf::Duration;
use sluice_model::HttpRetry;

use super::{DEFAULT_ROUTE_NAME, build_inbound_retry_policy};

/// The single route of an inbound port: to `cluster`, with the name `operation` in traces.
///
/// gRPC requests are not retried: a stream that is reset may already be in progress.
#[must_use]
pub(crate) fn build_inbound_route(cluster: &str, operation: &str, is_grpc: bool, retry: Option<&HttpRetry>) -> Route {
    let unlimited = Some(Duration::default());
    let action = RouteAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.into())),
        timeout: unlimited,
        max_stream_duration: Some(MaxStreamDuration {
            max_stream_duration: unlimited,
            grpc_timeout_header_max: unlimited,
            ..MaxStreamDuration::default()
        }),
        retry_policy: if is_grpc { None } else { build_inbound_retry_policy(retry) },
        ..RouteAction::default()
    };
    Route {
        name: DEFAULT_ROUTE_NAME.into(),
        r#match: Some(RouteMatch { path_specifier: Some(PathSpecifier::Prefix("/".into())), ..RouteMatch::default() }),
        decorator: Some(Decorator { operation: operation.into(), propagate: None }),
        action: Some(Action::Route(action)),
        ..Route::default()
    }
}
