//! The filters for metadata exchange with the peer (N09), which only istio-proxy has.

use envoy_types::pb::google::protobuf::Any;

use crate::wire::typed_struct;

/// Name of the network filter and of the HTTP filter.
pub(crate) const METADATA_EXCHANGE: &str = "istio.metadata_exchange";

/// Type URL of Istio's message, which Envoy's API does not contain.
const TYPE_URL: &str = "type.googleapis.com/envoy.tcp.metadataexchange.config.MetadataExchange";

/// Configuration of the network filter, the same for listeners and clusters.
pub(crate) fn metadata_exchange_config() -> Any {
    typed_struct(TYPE_URL, serde_json::json!({"protocol": "istio-peer-exchange", "enable_discovery": true}))
}
