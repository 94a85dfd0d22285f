//! The configuration that is served to other control planes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prost::Message as _;
use serde_json::Value;
use sluice_auth::is_in_trust_domain;
use sluice_engine::{Engine, Epoch, Published};
use sluice_graph::Handles;
use sluice_model::{Identity, Kind, MeshConfig, ObjectKey, Service, ServiceKey, ServiceSource, Text};
use sluice_parse::KindInfo;
use sluice_proto::json::decode_any;
use sluice_sources::{MeshLayers, Originals};
use sluice_xds::{ConfigurationStore, ListedResources, NamedResource};
use sluice_xds_protocol::StreamError;
use tokio::sync::watch;

use crate::kinds::{MESH_CONFIG_TYPE, RESOURCE_MESSAGE, TYPE_URL_PREFIX, kind_of_type};
use crate::resource::{resource_name, resource_of};
use crate::service_entry::service_entry;

/// The message of the mesh config.
const MESH_CONFIG_MESSAGE: &str = "istio.mesh.v1alpha1.MeshConfig";

/// The configuration of this control plane, for others. A clone is another handle of the same configuration.
#[derive(Clone)]
pub struct ServedConfiguration(Arc<Shared>);

struct Shared {
    engine: Engine,
    mesh: Published<(), MeshConfig>,
    services: Published<ServiceKey, Service>,
    originals: Originals,
    mesh_layers: watch::Receiver<MeshLayers>,
    /// The local cluster. Objects of remote clusters are workloads, and no configuration.
    cluster: Text,
    /// Only service accounts of the root namespace may read configuration.
    checks_identity: bool,
    /// Number of changes of the services and of the mesh config.
    service_changes: AtomicU64,
    /// Number of changes of any type.
    changes: watch::Sender<u64>,
    listed: Mutex<BTreeMap<Kind, ListedKind>>,
    listed_mesh: Mutex<Option<(MeshLayers, Arc<[NamedResource]>)>>,
}

/// The resources of a kind as they were last listed. Only what has changed since is encoded again.
#[derive(Default)]
struct ListedKind {
    /// Number of changes of the objects and of the services before they were listed.
    version: Option<(u64, u64)>,
    objects: BTreeMap<ObjectKey, ListedObject>,
    services: BTreeMap<ServiceKey, (Epoch, Option<NamedResource>)>,
    resources: Arc<[NamedResource]>,
}

struct ListedObject {
    text: Arc<str>,
    /// `None` if the object is not valid.
    resource: Option<NamedResource>,
}

impl ServedConfiguration {
    /// The configuration of a cluster, as it was written. Unless `checks_identity` is false, only service accounts of the root
    /// namespace may read it.
    #[must_use]
    pub fn new(
        engine: Engine,
        handles: &Handles,
        originals: Originals,
        mesh_layers: watch::Receiver<MeshLayers>,
        cluster: Text,
        checks_identity: bool,
    ) -> Self {
        Self(Arc::new(Shared {
            engine,
            mesh: handles.mesh.clone(),
            services: handles.services.clone(),
            originals,
            mesh_layers,
            cluster,
            checks_identity,
            service_changes: AtomicU64::new(0),
            changes: watch::Sender::default(),
            listed: Mutex::default(),
            listed_mesh: Mutex::default(),
        }))
    }

    /// Reports changes to streams until the engine stops.
    pub fn follow(&self) -> impl Future<Output = ()> + Send + use<> {
        let shared = self.0.clone();
        let mut feed = shared.engine.feed().only(&shared.mesh).only(&shared.services);
        let (mut originals, mut layers) = (shared.originals.changes(), shared.mesh_layers.clone());
        async move {
            loop {
                let is_open = tokio::select! {
                    batch = feed.next() => {
                        shared.service_changes.fetch_add(1, Ordering::Release);
                        batch.is_some()
                    }
                    changed = originals.changed() => changed.is_ok(),
                    changed = layers.changed() => changed.is_ok(),
                };
                if !is_open {
                    return;
                }
                shared.changes.send_modify(|changes| *changes += 1);
            }
        }
    }
}

impl ConfigurationStore for ServedConfiguration {
    fn has_type(&self, type_url: &str) -> bool {
        type_url == MESH_CONFIG_TYPE || kind_of_type(type_url).is_some()
    }

    fn authorize(&self, identity: Option<&Identity>) -> Result<(), StreamError> {
        if !self.0.checks_identity {
            return Ok(());
        }
        let identity = identity.ok_or_else(|| {
            StreamError::Unauthenticated("configuration is served to authenticated control planes only".to_owned())
        })?;
        let mesh = self.0.engine.snapshot().get(&self.0.mesh, &()).unwrap_or_default();
        if identity.namespace != mesh.root_namespace || !is_in_trust_domain(identity, &mesh.trust_domain) {
            return Err(StreamError::Denied(
                "configuration is served to service accounts of the root namespace only".to_owned(),
            ));
        }
        Ok(())
    }

    fn list(&self, type_url: &str) -> ListedResources {
        let (shared, type_url) = (self.0.clone(), type_url.to_owned());
        Box::pin(async move {
            let listing = tokio::task::spawn_blocking(move || shared.list(&type_url));
            listing
                .await
                .map_err(|error| StreamError::Unavailable(format!("the configuration cannot be listed: {error}")))
        })
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }
}

impl Shared {
    fn list(&self, type_url: &str) -> Arc<[NamedResource]> {
        if type_url == MESH_CONFIG_TYPE {
            return self.list_mesh_config();
        }
        let Some(info) = kind_of_type(type_url) else { return Arc::default() };
        let mut all = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        // If listing panics, the kind is listed anew the next time.
        let mut listed = all.remove(&info.kind).unwrap_or_default();
        listed.update(self, info);
        let resources = listed.resources.clone();
        all.insert(info.kind, listed);
        resources
    }

    /// The mesh config. It is no object: it has no name and no metadata.
    fn list_mesh_config(&self) -> Arc<[NamedResource]> {
        let layers = self.mesh_layers.borrow().clone();
        let mut listed = self.listed_mesh.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, resources)) = listed.as_ref().filter(|(old, _)| *old == layers) {
            return resources.clone();
        }
        let resources: Arc<[NamedResource]> = match mesh_config(&layers) {
            Ok(resource) => [resource].into(),
            Err(reason) => {
                tracing::warn!(target: "ads", "the mesh config is not served to other control planes: {reason}");
                Arc::default()
            }
        };
        *listed = Some((layers, resources.clone()));
        resources
    }
}

/// The resource of the mesh config of these layers.
fn mesh_config(layers: &[Value]) -> Result<NamedResource, String> {
    let mut mesh = sluice_inject::mesh_config(layers)?;
    mesh["@type"] = format!("{TYPE_URL_PREFIX}{MESH_CONFIG_MESSAGE}").into();
    let (type_url, bytes) = decode_any(&mesh).map_err(|error| error.to_string())?.message;
    Ok(NamedResource { name: String::new(), type_url, bytes: bytes.into() })
}

impl ListedKind {
    fn update(&mut self, shared: &Shared, info: &KindInfo) {
        let has_services = info.kind == Kind::ServiceEntry;
        // The numbers are read first: what changes in the meantime is listed again.
        let services = if has_services { shared.service_changes.load(Ordering::Acquire) } else { 0 };
        let objects = shared.originals.changes().borrow().get(&info.kind).copied().unwrap_or_default();
        if self.version == Some((objects, services)) {
            return;
        }
        self.update_objects(shared, info);
        if has_services {
            self.update_services(shared, info);
        }
        // A user's object replaces the ServiceEntry of a Service with the same name.
        let of_services = self.services.values().filter_map(|(_, resource)| resource.as_ref());
        let of_objects = self.objects.values().filter_map(|object| object.resource.as_ref());
        let by_name: BTreeMap<&str, &NamedResource> =
            of_services.chain(of_objects).map(|resource| (resource.name.as_str(), resource)).collect();
        self.resources = by_name.into_values().cloned().collect();
        self.version = Some((objects, services));
    }

    fn update_objects(&mut self, shared: &Shared, info: &KindInfo) {
        let mut old = std::mem::take(&mut self.objects);
        for (key, text) in shared.originals.of_kind(info.kind) {
            if key.cluster != shared.cluster {
                continue;
            }
            let listed = match old.remove(&key) {
                Some(listed) if Arc::ptr_eq(&listed.text, &text) => listed,
                _ => ListedObject { resource: object_resource(info, &key, &text), text },
            };
            self.objects.insert(key, listed);
        }
    }

    /// Updates the ServiceEntries of the Services of Kubernetes that the root namespace sees.
    fn update_services(&mut self, shared: &Shared, info: &KindInfo) {
        let snapshot = shared.engine.snapshot();
        let root_namespace = snapshot.get(&shared.mesh, &()).unwrap_or_default().root_namespace.clone();
        let mut old = std::mem::take(&mut self.services);
        for (key, service) in snapshot.iter(&shared.services) {
            if service.source != ServiceSource::Kubernetes || !service.export_to.allows(&root_namespace) {
                continue;
            }
            let Some(epoch) = snapshot.changed_at(&shared.services, key) else { continue };
            let listed = match old.remove(key) {
                Some(listed) if listed.0 == epoch => listed,
                _ => {
                    let (entry_key, entry) = service_entry(service);
                    (epoch, named_resource(info, &entry_key, &entry))
                }
            };
            self.services.insert(key.clone(), listed);
        }
    }
}

/// The resource of an object's text.
fn object_resource(info: &KindInfo, key: &ObjectKey, text: &str) -> Option<NamedResource> {
    match serde_json::from_str(text) {
        Ok(object) => named_resource(info, key, &object),
        Err(error) => {
            tracing::warn!(target: "ads", kind = info.name, object = %key, "an object is not served to other control planes: {error}");
            None
        }
    }
}

/// The encoded resource of an object. `None` if it is not valid.
fn named_resource(info: &KindInfo, key: &ObjectKey, object: &Value) -> Option<NamedResource> {
    match resource_of(info, key, object) {
        Ok(resource) => Some(NamedResource {
            name: resource_name(&key.namespace, &key.name),
            type_url: format!("{TYPE_URL_PREFIX}{RESOURCE_MESSAGE}"),
            bytes: resource.encode_to_vec().into(),
        }),
        Err(error) => {
            tracing::warn!(target: "ads", kind = info.name, object = %key, "an object is not served to other control planes: {error}");
            None
        }
    }
}
