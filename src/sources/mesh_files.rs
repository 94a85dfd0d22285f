//! Mesh config and networks from files (C12, C17): where a file is there, it counts instead of the ConfigMap.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use sluice_model::{Kind, MeshConfig, MeshNetworks, MeshSettings, Object, ObjectKey, ParsedObject, Severity};
use sluice_parse::yaml::{self, Limits};
use sluice_parse::{Findings, lay_mesh_config, parse_mesh_networks};
use tracing::warn;

/// Why a file with mesh settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MeshFileError {
    /// It cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        error: io::Error,
    },
    /// It is no YAML, or not what it should be.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line and reason.
        reason: String,
    },
}

/// What files say of the mesh, over what its ConfigMap says.
#[derive(Clone, Debug)]
pub struct MeshOverride {
    /// The ConfigMap the files stand in for.
    key: ObjectKey,
    mesh: Option<MeshConfig>,
    networks: Option<MeshNetworks>,
    /// What the ConfigMap itself said last.
    below: Arc<Mutex<MeshSettings>>,
}

impl MeshOverride {
    /// Reads both files, if they exist. `key` is the ConfigMap's.
    ///
    /// # Errors
    /// A file is there and cannot be read, or is invalid.
    pub fn read(key: ObjectKey, mesh: &Path, networks: &Path) -> Result<Self, MeshFileError> {
        let mesh = read_file(mesh, |value, findings| lay_mesh_config(MeshConfig::default(), value, "", findings))?;
        let networks = read_file(networks, |value, findings| parse_mesh_networks(value, "", findings))?;
        Ok(Self { key, mesh, networks, below: Arc::default() })
    }

    /// Nothing from files.
    #[must_use]
    pub fn none(key: ObjectKey) -> Self {
        Self { key, mesh: None, networks: None, below: Arc::default() }
    }

    /// The object to begin with, if there is a file.
    #[must_use]
    pub fn initial(&self) -> Option<ParsedObject> {
        self.instead_of(Kind::ConfigMap, &self.key)
    }

    /// Puts what files say into the settings of the ConfigMap.
    pub(super) fn lay_over(&self, key: &ObjectKey, settings: &mut MeshSettings) {
        if *key == self.key {
            self.below.lock().unwrap_or_else(PoisonError::into_inner).clone_from(settings);
            settings.mesh = self.mesh.clone().unwrap_or_else(|| settings.mesh.clone());
            settings.networks = self.networks.clone().unwrap_or_else(|| settings.networks.clone());
        }
    }

    /// What stands in for the ConfigMap when it is not there.
    pub(super) fn instead_of(&self, kind: Kind, key: &ObjectKey) -> Option<ParsedObject> {
        if kind != Kind::ConfigMap || *key != self.key || (self.mesh.is_none() && self.networks.is_none()) {
            return None;
        }
        let settings = MeshSettings {
            mesh: self.mesh.clone().unwrap_or_default(),
            networks: self.networks.clone().unwrap_or_default(),
        };
        let object = Some(Object::MeshSettings(Box::new(settings)));
        Some(ParsedObject { kind, key: key.clone(), object, rejects: Vec::new() })
    }
}

fn read_file<T>(path: &Path, read: impl Fn(&Value, &Findings) -> T) -> Result<Option<T>, MeshFileError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(MeshFileError::Read { path: path.to_owned(), error }),
    };
    let invalid = |reason: String| MeshFileError::Invalid { path: path.to_owned(), reason };
    let text = String::from_utf8(bytes).map_err(|_| invalid("not UTF-8".to_owned()))?;
    let value = yaml::parse_value(&text, &Limits::default()).map_err(|error| invalid(error.to_string()))?;
    let value = if value.is_null() { Value::Object(serde_json::Map::new()) } else { value };
    let findings = Findings::default();
    let settings = read(&value, &findings);
    for finding in findings.into_vec() {
        let field = finding.field_path.trim_start_matches('.');
        let line = yaml::find_line(&text, first_line(&text), field);
        let reason = format!("line {line}: {field}: {}", finding.reason);
        if finding.severity == Severity::Error {
            return Err(invalid(reason));
        }
        warn!(file = %path.display(), reason, "mesh settings in doubt");
    }
    Ok(Some(settings))
}

/// The line a text's only document begins on.
fn first_line(text: &str) -> usize {
    let documents = yaml::parse_documents(text, &Limits::default());
    documents.into_iter().next().and_then(Result::ok).map_or(1, |document| document.line)
}
