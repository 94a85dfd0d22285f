//! Generated protobuf types: Istio's own messages, and one descriptor pool with Envoy's
