//! Findings about sources of configuration, as rejects of the mesh config that lists them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sluice_engine::Input;
use sluice_graph::RejectKey;
use sluice_model::{Kind, ObjectKey, Reject, RejectCause, Severity, Text};

/// A finding about a source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SourceFinding {
    /// The field of the mesh config, below the list: `[1].address`.
    pub field_path: String,
    /// What is wrong and what applies instead, as a lower-case fragment.
    pub reason: String,
    /// Whether something does not apply.
    pub severity: Severity,
}

/// The findings about all sources. A clone is another handle.
#[derive(Clone)]
pub struct SourceFindings(Arc<Shared>);

struct Shared {
    input: Input<RejectKey, Vec<Reject>>,
    /// The ConfigMap with the mesh config.
    object: ObjectKey,
    /// The findings of each source, by its index. Those about the list have no index.
    findings: Mutex<BTreeMap<Option<usize>, Vec<SourceFinding>>>,
}

impl SourceFindings {
    /// Writes the findings to `input`, as rejects of the ConfigMap `object`.
    #[must_use]
    pub fn new(input: Input<RejectKey, Vec<Reject>>, object: ObjectKey) -> Self {
        Self(Arc::new(Shared { input, object, findings: Mutex::default() }))
    }

    /// Replaces the findings about a source, or about the list.
    pub fn set(&self, source: Option<usize>, found: Vec<SourceFinding>) {
        let shared = &self.0;
        let mut findings = shared.findings.lock().unwrap_or_else(PoisonError::into_inner);
        let old = if found.is_empty() { findings.remove(&source) } else { findings.insert(source, found.clone()) };
        if old.unwrap_or_default() == found {
            return;
        }
        let key = RejectKey { kind: Kind::ConfigMap, object: shared.object.clone() };
        let rejects: Vec<Reject> = findings.values().flatten().map(|finding| shared.reject(finding)).collect();
        match rejects.is_empty() {
            true => shared.input.delete(key),
            false => shared.input.set(key, rejects),
        }
    }
}

impl Shared {
    fn reject(&self, finding: &SourceFinding) -> Reject {
        Reject {
            kind: Kind::ConfigMap,
            object: self.object.clone(),
            field_path: Text::from(format!("data.mesh.configSources{}", finding.field_path)),
            reason: finding.reason.as_str().into(),
            severity: finding.severity,
            cause: RejectCause::Other,
        }
    }
}
