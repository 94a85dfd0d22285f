//! The objects of the server, and the history of their changes.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

/// A kind of object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ResourceKind {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// Versions served.
    pub versions: Vec<&'static str>,
    /// `kind` of its objects.
    pub name: &'static str,
    /// Name in URLs.
    pub plural: &'static str,
}

/// The built-in kinds that tests use.
const BUILT_IN: &[(&str, &str, &str)] = &[
    ("", "ConfigMap", "configmaps"),
    ("", "Namespace", "namespaces"),
    ("", "Node", "nodes"),
    ("", "Pod", "pods"),
    ("", "Secret", "secrets"),
    ("", "Service", "services"),
    ("", "ServiceAccount", "serviceaccounts"),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
    ("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions"),
    ("certificates.k8s.io", "CertificateSigningRequest", "certificatesigningrequests"),
    ("certificates.k8s.io", "ClusterTrustBundle", "clustertrustbundles"),
    ("coordination.k8s.io", "Lease", "leases"),
    ("discovery.k8s.io", "EndpointSlice", "endpointslices"),
    ("networking.k8s.io", "Ingress", "ingresses"),
    ("networking.k8s.io", "IngressClass", "ingressclasses"),
];

/// Those of them whose status is a subresource.
const BUILT_IN_WITH_STATUS: [&str; 6] =
    ["certificatesigningrequests", "ingresses", "namespaces", "nodes", "pods", "services"];

/// Properties of a kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KindTraits {
    /// Its status is a subresource: a request for the whole object does not change it.
    pub(super) has_status: bool,
    /// Its objects count the changes of their specs.
    pub(super) has_generation: bool,
    /// Its approval is a subresource: a request for the status does not change it.
    pub(super) has_approval: bool,
}

/// An object, and its text as an item of a list after the first list.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) object: Value,
    item: OnceLock<String>,
}

impl Stored {
    fn new(object: Value) -> Arc<Self> {
        Arc::new(Self { object, item: OnceLock::new() })
    }

    /// The text of the object in a list: as in a real server's, without `kind` and `apiVersion`.
    pub(super) fn item(&self) -> &str {
        self.item.get_or_init(|| {
            let fields = self.object.as_object().into_iter().flatten();
            let fields: BTreeMap<&String, &Value> =
                fields.filter(|(name, _)| *name != "kind" && *name != "apiVersion").collect();
            json!(fields).to_string()
        })
    }
}

/// A change of an object.
#[derive(Clone, Debug)]
pub(super) struct StoreEvent {
    pub(super) version: u64,
    pub(super) resource: (String, String),
    /// The object before the change; none if it was created.
    pub(super) old: Option<Arc<Stored>>,
    pub(super) is_deleted: bool,
    /// The object after the change, or the deleted one.
    pub(super) object: Arc<Stored>,
}

/// The rest of a list that is read in pages.
#[derive(Clone, Debug)]
pub(super) struct PagedList {
    pub(super) version: u64,
    pub(super) objects: Vec<Arc<Stored>>,
}

type Resource = (String, String);

/// Objects by group and plural, then by namespace and name.
pub(super) struct ObjectStore {
    kinds: Vec<ResourceKind>,
    objects: BTreeMap<Resource, BTreeMap<(String, String), Arc<Stored>>>,
    version: u64,
    /// Earlier events are compacted.
    floor: u64,
    events: Vec<StoreEvent>,
    pages: BTreeMap<String, PagedList>,
    next_page: u64,
}

impl Default for ObjectStore {
    fn default() -> Self {
        let kind = |(group, name, plural): &(&'static str, &'static str, &'static str)| ResourceKind {
            group,
            versions: vec!["v1"],
            name,
            plural,
        };
        Self {
            kinds: BUILT_IN.iter().map(kind).collect(),
            objects: BTreeMap::new(),
            version: 100,
            floor: 0,
            events: Vec::new(),
            pages: BTreeMap::new(),
            next_page: 0,
        }
    }
}

impl ObjectStore {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    pub(super) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&ResourceKind> {
        let served =
            |kind: &&ResourceKind| kind.group == group && kind.plural == plural && kind.versions.contains(&version);
        self.kinds.iter().find(served)
    }

    /// Whether a kind is served in a version. It is also true for resources that the table of kinds does not have.
    pub(super) fn may_serve(&self, group: &str, version: &str, plural: &str) -> bool {
        let mut kinds = self.kinds.iter().filter(|kind| kind.group == group && kind.plural == plural).peekable();
        kinds.peek().is_none() || kinds.any(|kind| kind.versions.contains(&version))
    }

    /// The name in URLs of a kind.
    pub(super) fn plural(&self, group: &str, kind: &str) -> Option<&'static str> {
        self.kinds.iter().find(|known| known.group == group && known.name == kind).map(|known| known.plural)
    }

    /// Properties of a kind, by its name in URLs.
    pub(super) fn traits(&self, group: &str, plural: &str) -> KindTraits {
        let is_built_in = BUILT_IN.iter().any(|(of, _, name)| (*of, *name) == (group, plural));
        KindTraits {
            has_status: !is_built_in || BUILT_IN_WITH_STATUS.contains(&plural),
            has_generation: !is_built_in,
            has_approval: is_built_in && plural == "certificatesigningrequests",
        }
    }

    /// Versions of a group, in the order of its kinds.
    pub(super) fn versions(&self, group: &str) -> Vec<&'static str> {
        let mut versions = Vec::new();
        for version in self.kinds.iter().filter(|kind| kind.group == group).flat_map(|kind| &kind.versions) {
            if !versions.contains(version) {
                versions.push(*version);
            }
        }
        versions
    }

    /// The groups that kinds are in, except the core group.
    pub(super) fn groups(&self) -> Vec<&'static str> {
        let mut groups: Vec<_> = self.kinds.iter().map(|kind| kind.group).filter(|group| !group.is_empty()).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// Plural and kind of the resources in a version of a group.
    pub(super) fn resources(&self, group: &str, version: &str) -> Vec<(&'static str, &'static str)> {
        let of = self.kinds.iter().filter(|kind| kind.group == group && kind.versions.contains(&version));
        of.map(|kind| (kind.plural, kind.name)).collect()
    }

    pub(super) fn define(&mut self, kind: ResourceKind) {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{}.{}", kind.plural, kind.group)},
            "spec": {"group": kind.group, "big": "x".repeat(1000)},
        });
        self.kinds.push(kind);
        self.apply(definition);
    }

    pub(super) fn undefine(&mut self, kind: &ResourceKind) {
        let resource = (kind.group.to_owned(), kind.plural.to_owned());
        let keys: Vec<_> = self.objects.get(&resource).into_iter().flat_map(BTreeMap::keys).cloned().collect();
        for (namespace, name) in keys {
            self.remove(&resource, &namespace, &name);
        }
        self.delete("customresourcedefinitions", "", &format!("{}.{}", kind.plural, kind.group));
        self.kinds.retain(|known| known != kind);
    }

    pub(super) fn apply(&mut self, mut object: Value) -> u64 {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind_name) = (text("/apiVersion"), text("/kind"));
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let kind = self.kinds.iter().find(|kind| kind.group == group && kind.name == kind_name);
        let kind = kind.unwrap_or_else(|| panic!("the server has no kind {kind_name} of {api_version}"));
        let resource = (kind.group.to_owned(), kind.plural.to_owned());
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let object = Stored::new(object);
        let old = self.objects.entry(resource.clone()).or_default().insert((namespace, name), object.clone());
        self.events.push(StoreEvent { version: self.version, resource, old, is_deleted: false, object });
        self.version
    }

    /// Deletes an object, if it exists, and returns it.
    pub(super) fn delete_if_present(
        &mut self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Value> {
        let object = self.get(group, plural, namespace, name)?;
        self.remove(&(group.to_owned(), plural.to_owned()), namespace, name);
        Some(object)
    }

    /// A name that no object has had.
    pub(super) fn new_name(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.version)
    }

    /// Applies an object and returns it with its new resource version.
    pub(super) fn apply_and_get(&mut self, mut object: Value) -> Value {
        let version = self.apply(object.clone());
        object["metadata"]["resourceVersion"] = version.to_string().into();
        object
    }

    pub(super) fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let objects = self.objects.get(&(group.to_owned(), plural.to_owned()))?;
        objects.get(&(namespace.to_owned(), name.to_owned())).map(|stored| stored.object.clone())
    }

    pub(super) fn delete(&mut self, plural: &str, namespace: &str, name: &str) {
        let resource = self.objects.keys().find(|(_, resource)| resource == plural).cloned();
        let resource = resource.unwrap_or_else(|| panic!("the server has no {plural}"));
        self.remove(&resource, namespace, name);
    }

    fn remove(&mut self, resource: &Resource, namespace: &str, name: &str) {
        let objects = self.objects.get_mut(resource);
        let object = objects.and_then(|objects| objects.remove(&(namespace.to_owned(), name.to_owned())));
        let old = object.unwrap_or_else(|| panic!("there is no {resource:?} {namespace}/{name}"));
        let mut object = old.object.clone();
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let (resource, object) = (resource.clone(), Stored::new(object));
        self.events.push(StoreEvent { version: self.version, resource, old: Some(old), is_deleted: true, object });
    }

    pub(super) fn compact(&mut self) {
        self.floor = self.version;
        self.events.clear();
        self.pages.clear();
    }

    /// Serializes the items of all lists.
    pub(super) fn warm(&self) {
        for stored in self.objects.values().flat_map(BTreeMap::values) {
            stored.item();
        }
    }

    /// The objects of a resource that `selects` accepts.
    pub(super) fn list(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        selects: impl Fn(&Value) -> bool,
    ) -> PagedList {
        let objects = self.objects.get(&(group.to_owned(), plural.to_owned()));
        let objects = objects.into_iter().flatten().filter(|((of, _), _)| namespace.is_empty() || of == namespace);
        let objects = objects.map(|(_, stored)| stored).filter(|stored| selects(&stored.object)).cloned().collect();
        PagedList { version: self.version, objects }
    }

    /// Stores the rest of a list. Returns the continue token.
    pub(super) fn store_page(&mut self, page: PagedList) -> String {
        self.next_page += 1;
        let token = format!("page-{}", self.next_page);
        self.pages.insert(token.clone(), page);
        token
    }

    pub(super) fn take_page(&mut self, token: &str) -> Option<PagedList> {
        self.pages.remove(token)
    }

    /// The events of a resource after a version.
    pub(super) fn since(&self, group: &str, plural: &str, namespace: &str, version: u64) -> Vec<StoreEvent> {
        let matches = |event: &&StoreEvent| {
            let of = event.object.object.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
            event.resource.0 == group && event.resource.1 == plural && (namespace.is_empty() || of == namespace)
        };
        let first = self.events.partition_point(|event| event.version <= version);
        self.events.iter().skip(first).filter(matches).cloned().collect()
    }
}
