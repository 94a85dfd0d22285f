//! What counts of the mesh's ConfigMap and of the files that stand in for parts of it (C12, C17).

use sluice_model::{
    HeaderValue, Kind, MeshConfig, MeshNetworks, MeshSettings, Object, ObjectKey, ParsedObject, Reject,
};

use super::Change;

/// One of the files with mesh settings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MeshPart {
    /// `--meshConfig`.
    Mesh,
    /// `--networksConfig`.
    Networks,
}

impl MeshPart {
    /// The key a file's settings are committed under. No object has such a key: each has a cluster.
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

/// The mesh settings of the ConfigMap with those of files laid over them: a file that is there counts instead of the key of
/// the ConfigMap. One place remembers both, in the order in which they were committed, so that each can come and go.
#[derive(Clone, Debug)]
pub struct MeshOverride {
    /// The ConfigMap the files stand in for.
    key: ObjectKey,
    /// The last good one.
    config_map: Option<Box<MeshSettings>>,
    /// What is wrong with it now.
    rejects: Vec<Reject>,
    mesh: Option<MeshConfig>,
    networks: Option<MeshNetworks>,
    /// Where headers of providers are read from that are kept out of the mesh config.
    variable: fn(&str) -> Option<String>,
}

impl MeshOverride {
    /// Nothing from files yet. `key` is the ConfigMap's.
    #[must_use]
    pub fn new(key: ObjectKey) -> Self {
        Self {
            key,
            config_map: None,
            rejects: Vec::new(),
            mesh: None,
            networks: None,
            variable: |name| std::env::var(name).ok(),
        }
    }

    /// The change to make instead of one that concerns mesh settings; any other as it is.
    pub(super) fn lay(&mut self, change: Change) -> Change {
        if change.kind != Kind::ConfigMap {
            return change;
        }
        let Change { kind, key, object, origin } = change;
        if key == self.key {
            let (object, rejects) = object.map_or_else(Default::default, |it| (it.object, it.rejects));
            match object {
                Some(Object::MeshSettings(settings)) => self.config_map = Some(settings),
                // One that is wrong in any part leaves the last good one in force.
                _ if !rejects.is_empty() => {}
                _ => self.config_map = None,
            }
            self.rejects = rejects;
        } else if key == MeshPart::Mesh.key() {
            self.mesh = object.and_then(|parsed| settings_of(*parsed)).map(|settings| settings.mesh);
        } else if key == MeshPart::Networks.key() {
            self.networks = object.and_then(|parsed| settings_of(*parsed)).map(|settings| settings.networks);
        } else {
            return Change { kind, key, object, origin };
        }
        let object = self.in_force().map(Box::new);
        Change { kind, key: self.key.clone(), object, origin }
    }

    /// The ConfigMap as it would have to be; `None` if there is none and no file either.
    fn in_force(&self) -> Option<ParsedObject> {
        let is_there = self.config_map.is_some() || self.mesh.is_some() || self.networks.is_some();
        // With rejects and nothing else the defaults are said in so many words: a ConfigMap without a value would leave
        // in force what a file said that is gone.
        (is_there || !self.rejects.is_empty()).then(|| {
            let below = self.config_map.as_deref();
            let mut settings = MeshSettings {
                mesh: self.mesh.clone().or_else(|| below.map(|it| it.mesh.clone())).unwrap_or_default(),
                networks: self.networks.clone().or_else(|| below.map(|it| it.networks.clone())).unwrap_or_default(),
            };
            for header in settings.mesh.extension_providers.iter_mut().flat_map(|provider| provider.kind.headers_mut())
            {
                if let HeaderValue::Environment(name, value) = &mut header.value {
                    *value = (self.variable)(name).unwrap_or_default().into();
                }
            }
            let object = Some(Object::MeshSettings(Box::new(settings)));
            ParsedObject { kind: Kind::ConfigMap, key: self.key.clone(), object, rejects: self.rejects.clone() }
        })
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
    use sluice_model::{OpenTelemetryTracing, ProviderKind};
    use sluice_parse::parse_object;

    use super::*;

    #[test]
    fn headers_of_providers_come_from_the_environment() {
        let object = serde_json::json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": "istio-system", "name": "istio"},
            "data": {"mesh": "extensionProviders: [{name: o, opentelemetry: {service: s.example, port: 1, http: \
                {path: /, headers: [{name: a, envName: KEY}, {name: b, envName: NONE}, {name: c, value: v}]}}}]"},
        });
        let parsed = parse_object(&"c".into(), "cluster.local", &object).expect("a ConfigMap");
        let mut mesh = MeshOverride {
            variable: |name| (name == "KEY").then(|| "secret".to_owned()),
            ..MeshOverride::new(parsed.key.clone())
        };
        let change = Change {
            kind: parsed.kind,
            key: parsed.key.clone(),
            object: Some(Box::new(parsed)),
            origin: super::super::Origin::default(),
        };
        let laid = mesh.lay(change).object.and_then(|parsed| settings_of(*parsed)).expect("settings");
        let provider = laid.mesh.extension_providers.into_iter().find(|provider| provider.name == *"o");
        let Some(ProviderKind::OpenTelemetry(otel)) = provider.map(|provider| provider.kind) else {
            panic!("a tracer")
        };
        let OpenTelemetryTracing { http: Some(http), .. } = *otel else { panic!("over HTTP") };
        let values: Vec<&str> = http.headers.iter().map(|header| header.value.value().as_str()).collect();
        assert_eq!(values, ["secret", "", "v"]);
        assert!(!format!("{http:?}").contains("secret"));
    }
}
