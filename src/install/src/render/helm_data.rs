//! The data of templates: `.Values`, `.Release`, `.Chart`, `.Files`, `.Capabilities` and `.Template`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use sluice_template::functions::arguments::{exactly, text};
use sluice_template::{Extent, NamedFields, TemplateObject, Value};

use super::{Capabilities, Release};
use crate::chart::Chart;

/// What helm writes to labels that say who manages an object. It stays, so that helm can take over an installation.
const SERVICE: &str = "Helm";

/// The data of a template.
pub(super) fn data(
    chart: &Chart,
    release: &Release,
    values: &Json,
    capabilities: &Capabilities,
    template: &str,
) -> Value {
    let (major, minor) = capabilities.version().unwrap_or_default();
    let kube_version = vec![
        ("GitVersion", Value::text(capabilities.kube_version.as_str())),
        ("Major", Value::text(major.to_string())),
        ("Minor", Value::text(minor.to_string())),
        ("Version", Value::text(capabilities.kube_version.as_str())),
    ];
    let api_versions = VersionSet { versions: capabilities.api_versions.iter().cloned().collect() };
    let fields = [
        ("Values", Value::from_json(values)),
        (
            "Release",
            Value::from_json(&json!({
                "Name": release.name,
                "Namespace": release.namespace,
                "IsInstall": !release.is_upgrade,
                "IsUpgrade": release.is_upgrade,
                "Revision": 1,
                "Service": SERVICE,
            })),
        ),
        (
            "Chart",
            structure(
                "chart.Metadata",
                vec![
                    ("Name", Value::text(chart.name.as_str())),
                    ("Version", Value::text(chart.version.as_str())),
                    ("AppVersion", Value::text(chart.app_version.as_str())),
                ],
            ),
        ),
        ("Files", Value::Object(Arc::new(Files { files: chart.files.clone() }))),
        (
            "Capabilities",
            structure(
                "*chartutil.Capabilities",
                vec![
                    ("APIVersions", Value::Object(Arc::new(api_versions))),
                    ("KubeVersion", structure("chartutil.KubeVersion", kube_version)),
                ],
            ),
        ),
        ("Template", Value::from_json(&json!({"Name": template, "BasePath": format!("{}/templates", chart.name)}))),
    ];
    Value::dict(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn structure(type_name: &'static str, fields: Vec<(&'static str, Value)>) -> Value {
    Value::Object(Arc::new(NamedFields { type_name, fields: fields.into_iter().collect() }))
}

/// The files of a chart.
#[derive(Debug)]
struct Files {
    files: BTreeMap<String, String>,
}

impl TemplateObject for Files {
    fn type_name(&self) -> String {
        "engine.files".to_owned()
    }

    fn field(&self, _: &str) -> Result<Option<Value>, String> {
        Ok(None)
    }

    fn call(&self, name: &str, arguments: &[Value]) -> Result<Option<Value>, String> {
        let file = || -> Result<&str, String> {
            let [path] = exactly(arguments)?;
            Ok(self.files.get(text(path)?).map(String::as_str).unwrap_or_default())
        };
        Ok(match name {
            "Get" => Some(Value::text(file()?)),
            "Lines" => Some(Value::list(file()?.lines().map(Value::text).collect())),
            _ => None,
        })
    }

    fn extent(&self) -> Extent {
        Extent::default()
    }

    fn json(&self) -> Json {
        Json::Null
    }
}

/// The versions of the API.
#[derive(Debug)]
struct VersionSet {
    versions: Vec<String>,
}

impl TemplateObject for VersionSet {
    fn type_name(&self) -> String {
        "chartutil.VersionSet".to_owned()
    }

    fn field(&self, _: &str) -> Result<Option<Value>, String> {
        Ok(None)
    }

    fn call(&self, name: &str, arguments: &[Value]) -> Result<Option<Value>, String> {
        if name != "Has" {
            return Ok(None);
        }
        let [version] = exactly(arguments)?;
        let version = text(version)?;
        Ok(Some(Value::Bool(self.versions.iter().any(|known| known == version))))
    }

    fn extent(&self) -> Extent {
        Extent { depth: 1, bytes: self.versions.iter().map(String::len).sum() }
    }

    fn json(&self) -> Json {
        json!(self.versions)
    }
}
