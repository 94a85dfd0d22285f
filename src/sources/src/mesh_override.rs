//! Combines the ConfigMap of the mesh with the files that replace parts of it (C12, C17).

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use sluice_model::{HeaderValue, Kind, MeshConfig, MeshSettings, Object, ObjectKey, ParsedObject, Reject, Text};
use sluice_parse::{Findings, merge_mesh_config};
use tokio::sync::watch;

use super::{Change, ChangeOrigin};

/// One of the files with mesh settings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MeshPart {
    /// `--meshConfig`.
    Mesh,
    /// `--networksConfig`.
    Networks,
}

impl MeshPart {
    /// The key that a file's settings are committed under. No object has this key, because each object has a cluster.
    pub(super) fn key(self) -> ObjectKey {
        ObjectKey::new("", "", self.name())
    }

    /// For the log.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mesh => "mesh config",
            Self::Networks => "mesh networks",
        }
    }
}

/// Mesh config and mesh networks from up to four places. A file replaces that part of the ConfigMap. The shared
/// ConfigMap (`SHARED_MESH_CONFIG`) is merged below: fields of the revision's own settings replace those of the shared
/// ones, as they replace the defaults. All parts are kept, so that each can be added and removed at any time.
#[derive(Clone, Debug)]
pub struct MeshOverride {
    /// The ConfigMap of the revision.
    key: ObjectKey,
    config_map: Layer,
    /// The shared ConfigMap (`SHARED_MESH_CONFIG`).
    shared_key: Option<ObjectKey>,
    shared: Layer,
    mesh: Option<MeshSettings>,
    networks: Option<MeshSettings>,
    /// Reads environment variables, for provider headers with `envName`.
    variable: fn(&str) -> Option<String>,
    /// Publishes the layers of the mesh config as they were given.
    layers: watch::Sender<MeshLayers>,
}

/// The layers of the mesh config as JSON objects, without defaults. Fields of later ones replace those of earlier ones.
pub type MeshLayers = Vec<Value>;

/// A ConfigMap with mesh settings.
#[derive(Clone, Debug, Default)]
struct Layer {
    /// The last valid settings.
    settings: Option<Box<MeshSettings>>,
    /// The rejects of the current object.
    rejects: Vec<Reject>,
}

impl Layer {
    fn set(&mut self, object: Option<Box<ParsedObject>>) {
        let (object, rejects) = object.map_or_else(Default::default, |it| (it.object, it.rejects));
        match object {
            Some(Object::MeshSettings(settings)) => self.settings = Some(settings),
            // An invalid ConfigMap leaves the last valid settings in force.
            _ if !rejects.is_empty() => {}
            _ => self.settings = None,
        }
        self.rejects = rejects;
    }
}

impl MeshOverride {
    /// Without settings from files. `key` is the ConfigMap of the revision, `shared` the shared one.
    #[must_use]
    pub fn new(key: ObjectKey, shared: Option<ObjectKey>) -> Self {
        Self {
            shared_key: shared.filter(|shared| *shared != key),
            key,
            config_map: Layer::default(),
            shared: Layer::default(),
            mesh: None,
            networks: None,
            variable: |_| None,
            layers: watch::Sender::default(),
        }
    }

    /// The layers of the mesh config, for the injector: its templates see fields that nothing else reads.
    #[must_use]
    pub fn layers(&self) -> watch::Receiver<MeshLayers> {
        self.layers.subscribe()
    }

    /// Provider headers with `envName` have the values that `variable` returns. Without it, they are empty.
    #[must_use]
    pub fn with_environment(self, variable: fn(&str) -> Option<String>) -> Self {
        Self { variable, ..self }
    }

    /// Replaces a change of mesh settings by the change of the combined settings. Other changes are returned unchanged.
    pub(super) fn apply(&mut self, change: Change) -> Change {
        if change.kind != Kind::ConfigMap {
            return change;
        }
        let Change { kind, key, object, origin } = change;
        if key == self.key {
            self.config_map.set(object);
        } else if self.shared_key.as_ref() == Some(&key) {
            self.shared.set(object);
        } else if key == MeshPart::Mesh.key() {
            self.mesh = object.and_then(|parsed| settings_of(*parsed));
        } else if key == MeshPart::Networks.key() {
            self.networks = object.and_then(|parsed| settings_of(*parsed));
        } else {
            return Change { kind, key, object, origin };
        }
        self.publish_layers();
        let object = self.combined().map(Box::new);
        Change { kind, key: self.key.clone(), object, origin }
    }

    /// The ConfigMap that the combined settings are committed as.
    #[must_use]
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Whether a ConfigMap has mesh settings, if it exists.
    #[must_use]
    pub fn is_config_map(&self, key: &ObjectKey) -> bool {
        *key == self.key || self.shared_key.as_ref() == Some(key)
    }

    /// What sources commit when they read this ConfigMap: the combined settings, or the object itself if it has no mesh settings.
    /// An object without a value and without findings is deleted.
    pub fn combine(&mut self, parsed: ParsedObject) -> ParsedObject {
        let (kind, key) = (parsed.kind, parsed.key.clone());
        let change = Change { kind, key, object: Some(Box::new(parsed)), origin: ChangeOrigin::default() };
        let Change { kind, key, object, .. } = self.apply(change);
        object.map_or_else(|| ParsedObject { kind, key, object: None, rejects: Vec::new() }, |object| *object)
    }

    fn publish_layers(&self) {
        let (own, shared) = (self.config_map.settings.as_deref(), self.shared.settings.as_deref());
        let layers = [shared, self.mesh.as_ref().or(own)].into_iter().flatten();
        let layers: MeshLayers = layers.filter_map(|layer| serde_json::from_str(&layer.given).ok()).collect();
        self.layers.send_if_modified(|published| {
            let has_changed = *published != layers;
            *published = layers;
            has_changed
        });
    }

    /// The combined settings as a ConfigMap; `None` if there is neither a ConfigMap nor a file.
    fn combined(&self) -> Option<ParsedObject> {
        let layers = [&self.config_map, &self.shared];
        let has_config_map = layers.iter().any(|layer| layer.settings.is_some());
        let rejects: Vec<Reject> = layers.iter().flat_map(|layer| layer.rejects.iter().cloned()).collect();
        // If there are only rejects, the default settings are written explicitly: a ConfigMap without a value would
        // leave the settings of a removed file in force.
        (has_config_map || self.mesh.is_some() || self.networks.is_some() || !rejects.is_empty()).then(|| {
            let object = Some(Object::MeshSettings(Box::new(self.settings())));
            ParsedObject { kind: Kind::ConfigMap, key: self.key.clone(), object, rejects }
        })
    }

    fn settings(&self) -> MeshSettings {
        let (own, shared) = (self.config_map.settings.as_deref(), self.shared.settings.as_deref());
        let own_mesh = self.mesh.as_ref().or(own);
        let given = own_mesh.and_then(|it| serde_json::from_str::<Value>(&it.given).ok());
        let mut mesh = match (shared, given) {
            // Both were validated when they were read.
            (Some(shared), Some(given)) => merge_mesh_config(shared.mesh.clone(), &given, "", &Findings::default()),
            (Some(shared), None) => shared.mesh.clone(),
            (None, _) => own_mesh.map(|it| it.mesh.clone()).unwrap_or_default(),
        };
        for header in mesh.extension_providers.iter_mut().flat_map(|provider| provider.kind.headers_mut()) {
            if let HeaderValue::Environment(name, value) = &mut header.value {
                *value = (self.variable)(name).unwrap_or_default().into();
            }
        }
        // Networks are not merged: the first part that has any is used, and the shared ConfigMap is first.
        let layers = [shared, self.networks.as_ref(), own];
        let networks = layers.into_iter().flatten().find_map(|it| it.networks.clone());
        MeshSettings { mesh, given: Text::default(), networks }
    }
}

/// The mesh settings that the sources have read. Clones share them.
#[derive(Clone, Debug)]
pub struct CurrentMesh(Arc<Mutex<MeshOverride>>);

impl From<MeshOverride> for CurrentMesh {
    fn from(mesh: MeshOverride) -> Self {
        Self(Arc::new(Mutex::new(mesh)))
    }
}

impl CurrentMesh {
    /// As [`MeshOverride::apply`].
    pub(super) fn apply(&self, change: Change) -> Change {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).apply(change)
    }

    /// The mesh config of all layers.
    #[must_use]
    pub fn mesh(&self) -> MeshConfig {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).settings().mesh
    }

    /// A copy for a preview. The injector does not see its changes.
    #[must_use]
    pub fn copy(&self) -> MeshOverride {
        let mesh = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        MeshOverride { layers: watch::Sender::default(), ..mesh }
    }
}

fn settings_of(parsed: ParsedObject) -> Option<MeshSettings> {
    match parsed.object? {
        Object::MeshSettings(settings) => Some(*settings),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sluice_model::{MeshNetworks, OpenTelemetryTracing, ProviderKind};
    use sluice_parse::parse_object;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("c", "istio-system", name)
    }

    fn change(name: &str, data: Option<Value>) -> Change {
        let object = data.map(|data| {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": "istio-system"}, "data": data,
            });
            Box::new(parse_object(&"c".into(), "cluster.local", &object).expect("a ConfigMap"))
        });
        Change { kind: Kind::ConfigMap, key: key(name), object, origin: ChangeOrigin::default() }
    }

    /// The settings in force after the change.
    fn after(mesh: &mut MeshOverride, name: &str, data: Option<Value>) -> (MeshConfig, MeshNetworks, usize) {
        let changed = mesh.apply(change(name, data));
        assert_eq!(changed.key, key("istio"));
        let rejects = changed.object.as_ref().map(|object| object.rejects.len()).unwrap_or_default();
        let settings = changed.object.and_then(|object| settings_of(*object)).unwrap_or_default();
        (settings.mesh, settings.networks.unwrap_or_default(), rejects)
    }

    #[test]
    fn settings_of_the_revision_replace_shared_ones() {
        let mut mesh = MeshOverride::new(key("istio"), Some(key("shared")));
        let own = json!({"mesh": "trustDomain: own\ndefaultConfig: {proxyMetadata: {A: own}}",
                         "meshNetworks": "networks: {own: {}}"});
        let (now, networks, _) = after(&mut mesh, "istio", Some(own));
        assert_eq!((now.trust_domain.as_str(), networks.networks.len()), ("own", 1));

        let shared = json!({"mesh": "trustDomain: shared\nrootNamespace: shared\n\
                                     defaultConfig: {proxyMetadata: {A: shared, B: shared}}"});
        let (now, networks, _) = after(&mut mesh, "shared", Some(shared));
        assert_eq!((now.trust_domain.as_str(), now.root_namespace.as_str()), ("own", "shared"));
        let metadata: Vec<_> = now.default_config.proxy_metadata.values().map(Text::as_str).collect();
        assert_eq!((metadata, networks.networks.len()), (vec!["own", "shared"], 1));

        // Shared networks are first, and invalid settings leave the last valid ones in force.
        let networks = json!({"mesh": "rootNamespace: shared", "meshNetworks": "networks: {}"});
        assert_eq!(after(&mut mesh, "shared", Some(networks)).1.networks.len(), 0);
        let (now, _, rejects) = after(&mut mesh, "shared", Some(json!({"mesh": "connectTimeout: soon"})));
        assert_eq!((now.root_namespace.as_str(), rejects), ("shared", 1));
        let (now, networks, rejects) = after(&mut mesh, "shared", None);
        assert_eq!((now.root_namespace.as_str(), networks.networks.len(), rejects), ("istio-system", 1, 0));
        assert_eq!(after(&mut mesh, "istio", None).0, MeshConfig::default());
    }

    #[test]
    fn copy_combines_without_an_effect_on_the_settings_in_force() {
        let mut mesh = MeshOverride::new(key("istio"), Some(key("shared")));
        after(&mut mesh, "shared", Some(json!({"mesh": "rootNamespace: shared"})));
        let mut layers = mesh.layers();
        let current = CurrentMesh::from(mesh);
        layers.mark_unchanged();
        let mut copy = current.copy();
        assert!(copy.is_config_map(&key("shared")) && !copy.is_config_map(&key("other")));
        let own = change("istio", Some(json!({"mesh": "trustDomain: own"}))).object.expect("an object");
        let settings = settings_of(copy.combine(*own)).expect("settings");
        assert_eq!((settings.mesh.trust_domain.as_str(), settings.mesh.root_namespace.as_str()), ("own", "shared"));
        assert!(!layers.has_changed().expect("the sender exists"));
        let none = |name| ParsedObject { kind: Kind::ConfigMap, key: key(name), object: None, rejects: Vec::new() };
        assert_eq!(copy.combine(none("shared")).key, key("istio"));
        let settings = settings_of(current.copy().combine(none("istio"))).expect("the shared settings");
        assert_eq!(settings.mesh.root_namespace.as_str(), "shared");
    }

    #[test]
    fn other_config_map_is_not_changed() {
        let mut mesh = MeshOverride::new(key("istio"), None);
        assert_eq!(mesh.apply(change("shared", Some(json!({"mesh": "{}"})))).key, key("shared"));
    }

    #[test]
    fn headers_of_providers_come_from_the_environment() {
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": "istio-system", "name": "istio"},
            "data": {"mesh": "extensionProviders: [{name: o, opentelemetry: {service: s.example, port: 1, http: \
                {path: /, headers: [{name: a, envName: KEY}, {name: b, envName: NONE}, {name: c, value: v}]}}}]"},
        });
        let parsed = parse_object(&"c".into(), "cluster.local", &object).expect("a ConfigMap");
        let mut mesh = MeshOverride::new(parsed.key.clone(), None)
            .with_environment(|name| (name == "KEY").then(|| "secret".to_owned()));
        let change = Change {
            kind: parsed.kind,
            key: parsed.key.clone(),
            object: Some(Box::new(parsed)),
            origin: ChangeOrigin::default(),
        };
        let applied = mesh.apply(change).object.and_then(|parsed| settings_of(*parsed)).expect("settings");
        let provider = applied.mesh.extension_providers.into_iter().find(|provider| provider.name == *"o");
        let Some(ProviderKind::OpenTelemetry(otel)) = provider.map(|provider| provider.kind) else {
            panic!("a tracer")
        };
        let OpenTelemetryTracing { http: Some(http), .. } = *otel else { panic!("over HTTP") };
        let values: Vec<&str> = http.headers.iter().map(|header| header.value.value().as_str()).collect();
        assert_eq!(values, ["secret", "", "v"]);
        assert!(!format!("{http:?}").contains("secret"));
    }
}
