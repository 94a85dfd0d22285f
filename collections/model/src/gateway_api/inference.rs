//! InferencePools: pods that serve models, and the service that picks one of them for each request.

use serde::{Deserialize, Serialize};

use crate::{Labels, ObjectMeta, StoredStatus, Text};

/// API group of InferencePools.
pub const INFERENCE_GROUP: &str = "inference.networking.k8s.io";

/// An InferencePool.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct InferencePool {
    /// Name, labels.
    pub meta: ObjectMeta,
    /// Labels of its pods.
    pub selector: Labels,
    /// Ports of its pods, in declared order.
    pub target_ports: Vec<u16>,
    /// `appProtocol` of the ports.
    pub app_protocol: Text,
    /// The service that picks endpoints.
    pub picker: EndpointPickerRef,
    /// Its unique id, which its Service refers to.
    pub uid: Text,
    /// Its status.
    pub status: StoredStatus,
}

/// A reference to the service that picks endpoints.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct EndpointPickerRef {
    /// Its kind. Only Services are supported.
    pub kind: Text,
    /// Its name; its namespace is that of the pool.
    pub name: Text,
    /// Its port.
    pub port: Option<u16>,
    /// While it fails, requests go to any endpoint. Otherwise they fail.
    pub fails_open: bool,
}
