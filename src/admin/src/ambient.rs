//! `ambientz`: what node proxies of ambient mode are sent (O08).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::Response;
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use serde_json::Value;
use sluice_engine::Snapshot;
use sluice_model::{ObjectKey, Resource, ResourceType};

use crate::AdminState;
use crate::answer::{self, Parameters};
use crate::config_dump::message_json;

/// Workloads, services and policies. A part without content is `null`, as all are without ambient mode.
pub(crate) async fn serve(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let part = |kind, field| Part { state: state.clone(), kind, field };
    let page = Ambient {
        workloads: part(ResourceType::Address, Some("workload")),
        services: part(ResourceType::Address, Some("service")),
        policies: part(ResourceType::Authorization, None),
    };
    answer::stream_json(page, &parameters)
}

/// What node proxies are sent about the workload of a pod; `None` without ambient mode.
pub(crate) fn workload_of_pod(state: &AdminState, snapshot: &Snapshot, pod: &ObjectKey) -> Option<Value> {
    let uid = format!("{}//Pod/{}/{}", pod.cluster, pod.namespace, pod.name);
    let mut resources = state.handles.resources.iter().flat_map(|resources| snapshot.iter(resources));
    let (_, resource) = resources.find(|(key, _)| key.resource_type == ResourceType::Address && *key.name == *uid)?;
    let Resource::Encoded(bytes) = resource else { return None };
    message_json(ResourceType::Address, bytes).get_mut("workload").map(Value::take)
}

#[derive(Serialize)]
struct Ambient {
    workloads: Part,
    services: Part,
    policies: Part,
}

/// The resources of a type that have a field, or all.
struct Part {
    state: Arc<AdminState>,
    kind: ResourceType,
    field: Option<&'static str>,
}

impl Part {
    fn rows<'a>(&'a self, snapshot: &'a Snapshot) -> impl Iterator<Item = Value> + 'a {
        let resources = self.state.handles.resources.iter().flat_map(|resources| snapshot.iter(resources));
        resources.filter(|(key, _)| key.resource_type == self.kind).filter_map(|(_, resource)| {
            let Resource::Encoded(bytes) = resource else { return None };
            let mut value = message_json(self.kind, bytes);
            match self.field {
                Some(field) => value.get_mut(field).map(Value::take),
                None => {
                    value.as_object_mut()?.remove("@type");
                    Some(value)
                }
            }
        })
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let snapshot = self.state.engine.snapshot();
        let mut rows = self.rows(&snapshot).peekable();
        if rows.peek().is_none() {
            return serializer.serialize_none();
        }
        let mut list = serializer.serialize_seq(None)?;
        for row in rows {
            list.serialize_element(&row)?;
        }
        list.end()
    }
}
