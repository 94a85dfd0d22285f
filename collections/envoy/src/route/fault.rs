//! Fault injection.

use envoy_types::pb::envoy::extensions::filters::common::fault::v3::FaultDelay as EnvoyDelay;
use envoy_types::pb::envoy::extensions::filters::common::fault::v3::fault_delay::FaultDelaySecifier;
use envoy_types::pb::envoy::extensions::filters::http::fault::v3::fault_abort::ErrorType;
use envoy_types::pb::envoy::extensions::filters::http::fault::v3::{FaultAbort as EnvoyAbort, HttpFault as EnvoyFault};
use envoy_types::pb::google::protobuf::Any;
use sluice_model::{AbortStatus, HttpFault};

use super::mirror::{hundredths, millionths};
use crate::wire::any;
use crate::wire::duration;

/// Configuration of the fault filter for a route.
pub(super) fn build_fault(fault: &HttpFault) -> Any {
    let delay = fault.delay.as_ref().and_then(|delay| {
        let fixed = delay.fixed?;
        Some(EnvoyDelay {
            percentage: Some(delay.percentage.map_or_else(|| hundredths(delay.percent), millionths)),
            fault_delay_secifier: Some(FaultDelaySecifier::FixedDelay(duration(fixed))),
        })
    });
    let abort = fault.abort.as_ref().and_then(|abort| {
        let error = match abort.status? {
            AbortStatus::Http(status) => ErrorType::HttpStatus(status),
            AbortStatus::Grpc(status) => ErrorType::GrpcStatus(status),
        };
        Some(EnvoyAbort {
            percentage: abort.percentage.map(millionths),
            error_type: Some(error),
            ..EnvoyAbort::default()
        })
    });
    any(&EnvoyFault { delay, abort, ..EnvoyFault::default() })
}
