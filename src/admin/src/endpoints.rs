//! `endpointz` and `endpointShardz`: the endpoints of all services in istiod's form (O08).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::Response;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use sluice_engine::Snapshot;
use sluice_model::{Endpoint, Health, Host, ServiceKey, ServiceSource, Text, TlsMode};

use crate::AdminState;
use crate::answer::{self, Parameters};

/// Endpoints by host, then by namespace, then by registry and cluster. They are encoded as the client reads them.
pub(crate) async fn serve(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    answer::stream_json(Page(state), &parameters)
}

struct Page(Arc<AdminState>);

/// The slices of the endpoints of a host, by namespace.
type Namespaces<'a> = BTreeMap<&'a Text, Vec<&'a [Endpoint]>>;

impl Page {
    fn hosts<'a>(&self, snapshot: &'a Snapshot) -> BTreeMap<&'a Host, Namespaces<'a>> {
        let listed = snapshot.iter(&self.0.handles.endpoints).map(|(key, endpoints)| (key, endpoints.as_slice()));
        let chunks = snapshot.iter(&self.0.handles.endpoint_chunks);
        let chunks = chunks.map(|((group, _), endpoints)| (&group.service, &**endpoints));
        let mut hosts: BTreeMap<&Host, Namespaces<'_>> = BTreeMap::new();
        for (key, endpoints) in listed.chain(chunks).filter(|(_, endpoints)| !endpoints.is_empty()) {
            hosts.entry(&key.host).or_default().entry(&key.namespace).or_default().push(endpoints);
        }
        hosts
    }
}

impl Serialize for Page {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let snapshot = self.0.engine.snapshot();
        let mut rows = serializer.serialize_map(None)?;
        for (host, namespaces) in self.hosts(&snapshot) {
            let row: BTreeMap<&Text, ServiceRow<'_>> = namespaces
                .into_iter()
                .map(|(namespace, endpoints)| {
                    let key = ServiceKey { namespace: namespace.clone(), host: host.clone() };
                    let source = snapshot.get(&self.0.handles.services, &key).map(|service| service.source);
                    (namespace, ServiceRow { is_external: source == Some(ServiceSource::ServiceEntry), endpoints })
                })
                .collect();
            rows.serialize_entry(&host.to_string(), &row)?;
        }
        rows.end()
    }
}

/// The endpoints of a service.
struct ServiceRow<'a> {
    is_external: bool,
    endpoints: Vec<&'a [Endpoint]>,
}

impl ServiceRow<'_> {
    fn all(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().flat_map(|endpoints| endpoints.iter())
    }
}

impl Serialize for ServiceRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let accounts = self.all().map(|endpoint| &endpoint.service_account).filter(|account| !account.is_empty());
        let accounts: Map<String, Value> = accounts.map(|account| (account.to_string(), json!({}))).collect();
        let mut row = serializer.serialize_map(Some(2))?;
        row.serialize_entry("ServiceAccounts", &accounts)?;
        row.serialize_entry("Shards", &Shards(self))?;
        row.end()
    }
}

/// The endpoints of a service by registry and cluster.
struct Shards<'a>(&'a ServiceRow<'a>);

impl Serialize for Shards<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let registry = if self.0.is_external { "External" } else { "Kubernetes" };
        let clusters: BTreeSet<&Text> = self.0.all().map(|endpoint| &endpoint.cluster).collect();
        let mut shards = serializer.serialize_map(Some(clusters.len()))?;
        for cluster in clusters {
            let endpoints = self.0.all().filter(|endpoint| endpoint.cluster == *cluster);
            shards.serialize_entry(&format!("{registry}/{cluster}"), &Rows(endpoints.collect()))?;
        }
        shards.end()
    }
}

struct Rows<'a>(Vec<&'a Endpoint>);

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|endpoint| row(endpoint)))
    }
}

/// An endpoint in istiod's form.
fn row(endpoint: &Endpoint) -> Value {
    let locality = &endpoint.locality;
    let label = match locality.region.is_empty() {
        true => String::new(),
        false => format!("{}/{}/{}", locality.region, locality.zone, locality.subzone),
    };
    json!({
        "Addresses": endpoint.addresses,
        "EndpointPort": endpoint.port,
        "ServicePortName": endpoint.port_name,
        "Labels": if endpoint.labels.is_empty() { Value::Null } else { json!(endpoint.labels) },
        "Locality": {"Label": label, "ClusterID": endpoint.cluster},
        "NodeName": endpoint.node,
        "Network": endpoint.network,
        "Namespace": endpoint.namespace,
        "WorkloadName": endpoint.workload_name,
        "ServiceAccount": endpoint.service_account,
        "TLSMode": match endpoint.tls_mode {
            TlsMode::Disabled => "disabled",
            TlsMode::Istio => "istio",
        },
        "HealthStatus": match endpoint.health {
            Health::Unknown => 0,
            Health::Healthy => 1,
            Health::Unhealthy => 2,
            Health::Draining => 3,
            Health::Terminating => 4,
        },
        "LbWeight": endpoint.weight,
        "HostName": endpoint.hostname,
        "SubDomain": endpoint.subdomain,
    })
}
