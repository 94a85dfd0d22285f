//! Renders charts as helm does: values with defaults, validation by the schema, templates, and the objects of their text.

mod functions;
mod helm_data;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;
use sluice_parse::yaml::{Limits, parse_documents};
use sluice_template::{ExecutionLimits, Lookup, MissingKeys, Scope, TemplateSet, Value};

use crate::chart::Chart;
use crate::error::InstallError;
use crate::object::KubeObject;
use crate::{schema, values};

/// What templates may do. A file of CRDs is a text of about a megabyte.
const LIMITS: ExecutionLimits = ExecutionLimits { output_bytes: 16 << 20, text_bytes: 8 << 20, steps: 50_000_000 };

/// A release of a chart, as its templates see it.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// Whether the release exists already.
    pub(crate) is_upgrade: bool,
}

/// The cluster, as templates see it.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Version of Kubernetes, such as `v1.34.0`.
    pub kube_version: String,
    /// Groups with versions, and kinds in these, such as `apps/v1/Deployment`.
    pub api_versions: BTreeSet<String>,
}

impl Default for Capabilities {
    /// Kubernetes 1.29, a lower bound.
    fn default() -> Self {
        Self { kube_version: "v1.29.0".to_owned(), api_versions: BTreeSet::new() }
    }
}

impl Capabilities {
    /// A version of Kubernetes such as `1.34.0`, without any kinds beside its own.
    #[must_use]
    pub fn of_version(version: &str) -> Self {
        let version = version.trim_start_matches('v');
        Self { kube_version: format!("v{version}"), ..Self::default() }
    }

    /// Major and minor version.
    #[must_use]
    pub fn version(&self) -> Option<(u32, u32)> {
        let mut parts = self.kube_version.trim_start_matches('v').split(['.', '-', '+']);
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

/// The objects of a chart, in the order of its templates.
///
/// # Errors
/// The schema does not permit the values, a template fails, or its text is not YAML.
pub(crate) fn render(
    chart: &Chart,
    release: &Release,
    user_values: &Json,
    capabilities: &Capabilities,
    lookup: &dyn Lookup,
) -> Result<Vec<KubeObject>, InstallError> {
    let failed = |reason: String| InstallError::Rendering { chart: chart.name.clone(), reason };
    check_kube_version(chart, capabilities).map_err(failed)?;
    let values = values::with_defaults(user_values, &chart.values);
    let findings = chart.schema.as_ref().map(|schema| schema::validate(schema, &values)).unwrap_or_default();
    if !findings.is_empty() {
        return Err(failed(findings.join("; ")));
    }
    let names: BTreeMap<String, &str> =
        chart.templates.iter().map(|(path, text)| (format!("{}/{path}", chart.name), text.as_str())).collect();
    let sources = names.iter().map(|(name, text)| (name.as_str(), *text));
    let set = TemplateSet::parse(sources, functions::find).map_err(|error| failed(error.to_string()))?;
    let environment = BTreeMap::new();
    let scope =
        Scope { lookup: Some(lookup), missing_keys: MissingKeys::Null, limits: LIMITS, ..Scope::new(&environment) };
    let mut objects = Vec::new();
    for name in names.keys().filter(|name| is_manifest(name)) {
        let data = helm_data::data(chart, release, &values, capabilities, name);
        let text = execute(&set, name, &data, &scope).map_err(failed)?;
        for document in parse_documents(&text, &Limits::default()) {
            let value = document.map_err(|error| failed(format!("{name}: {error}")))?.value;
            let object =
                KubeObject::new(value).ok_or_else(|| failed(format!("{name}: an object without kind or name")))?;
            objects.push(object);
        }
    }
    Ok(objects)
}

/// Whether the text of a template consists of objects. Files with an underscore only define templates.
fn is_manifest(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or_default();
    !file.starts_with('_') && file != "NOTES.txt"
}

fn execute(set: &TemplateSet, name: &str, data: &Value, scope: &Scope<'_>) -> Result<String, String> {
    let text = set.execute(name, data, scope).map_err(|failure| failure.to_string())?;
    // Helm prints nothing where Go has no value.
    Ok(text.unwrap_or_default().replace("<no value>", ""))
}

/// Charts state a lower bound as `>=1.25.0-0`.
fn check_kube_version(chart: &Chart, capabilities: &Capabilities) -> Result<(), String> {
    let Some(constraint) = &chart.kube_version else { return Ok(()) };
    let bound = constraint.strip_prefix(">=").and_then(|bound| {
        let mut parts = bound.trim().split('.');
        Some((parts.next()?.parse::<u32>().ok()?, parts.next()?.parse::<u32>().ok()?))
    });
    let Some(bound) = bound else {
        return Err(format!("Chart.yaml: kubeVersion: {constraint:?} is not of the form \">=MAJOR.MINOR.PATCH\""));
    };
    match capabilities.version() {
        Some(version) if version >= bound => Ok(()),
        _ => Err(format!("kubeVersion: Kubernetes {} does not meet {constraint}", capabilities.kube_version)),
    }
}

/// A cluster without objects.
#[derive(Debug)]
pub(crate) struct EmptyCluster;

impl Lookup for EmptyCluster {
    fn get(&self, _: &str, _: &str, _: &str, _: &str) -> Json {
        Json::Null
    }
}
