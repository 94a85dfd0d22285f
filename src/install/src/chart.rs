//! Charts: their metadata, default values, schema and files.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value as Json;
use sluice_parse::yaml::{Limits, parse_value};

use crate::error::InstallError;
use crate::operator::Component;

/// The files of the charts of this version, by their paths.
const EMBEDDED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/charts.rs"));

/// Maximum nesting of directories of a chart.
const MAX_DEPTH: usize = 10;

/// The charts that an installation renders.
#[derive(Debug)]
pub struct Charts {
    pub(crate) base: Chart,
    pub(crate) control_plane: Chart,
    pub(crate) gateway: Chart,
    pub(crate) cni: Chart,
    pub(crate) ztunnel: Chart,
}

impl Charts {
    /// The charts of this version. That of the CRDs has them only if the program was built with them.
    ///
    /// # Errors
    /// A chart is malformed.
    pub fn embedded() -> Result<Self, InstallError> {
        Self::read(|chart| {
            let own = EMBEDDED.iter().filter_map(|(path, text)| {
                let (directory, path) = path.split_once('/')?;
                (directory == chart).then(|| (path.to_owned(), (*text).to_owned()))
            });
            Ok(own.collect())
        })
    }

    /// The charts below a directory, in `base`, `sluice`, `gateway`, `cni` and `ztunnel`.
    ///
    /// # Errors
    /// A file cannot be read, or a chart is malformed.
    pub fn from_directory(directory: &Path) -> Result<Self, InstallError> {
        Self::read(|chart| {
            let mut files = BTreeMap::new();
            let root = directory.join(chart);
            collect(&root, "", 0, &mut files).map_err(|(path, reason)| InstallError::input(path, reason))?;
            Ok(files)
        })
    }

    /// The chart of a component.
    pub(crate) fn of(&self, component: Component) -> &Chart {
        match component {
            Component::Base => &self.base,
            Component::Pilot => &self.control_plane,
            Component::Cni => &self.cni,
            Component::Ztunnel => &self.ztunnel,
            Component::IngressGateway | Component::EgressGateway => &self.gateway,
        }
    }

    fn read(
        mut files: impl FnMut(&str) -> Result<BTreeMap<String, String>, InstallError>,
    ) -> Result<Self, InstallError> {
        Ok(Self {
            base: Chart::new(files("base")?)?,
            control_plane: Chart::new(files("sluice")?)?,
            gateway: Chart::new(files("gateway")?)?,
            cni: Chart::new(files("cni")?)?,
            ztunnel: Chart::new(files("ztunnel")?)?,
        })
    }
}

/// Adds the files below a directory under their paths. An error has the path and the reason.
fn collect(
    directory: &Path,
    prefix: &str,
    depth: usize,
    files: &mut BTreeMap<String, String>,
) -> Result<(), (String, String)> {
    let at = |path: &Path| path.display().to_string();
    if depth > MAX_DEPTH {
        return Err((at(directory), format!("more than {MAX_DEPTH} nested directories")));
    }
    let failed = |error: std::io::Error| (at(directory), error.to_string());
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let inner = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        if path.is_dir() {
            collect(&path, &inner, depth + 1, files)?;
        } else {
            let text = std::fs::read_to_string(&path).map_err(|error| (at(&path), error.to_string()))?;
            files.insert(inner, text);
        }
    }
    Ok(())
}

/// A chart.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) app_version: String,
    /// The versions of Kubernetes that it supports.
    pub(crate) kube_version: Option<String>,
    /// Default values.
    pub(crate) values: Json,
    pub(crate) schema: Option<Json>,
    /// Templates by their path in the chart.
    pub(crate) templates: BTreeMap<String, String>,
    /// The other files by their path in the chart.
    pub(crate) files: BTreeMap<String, String>,
}

impl Chart {
    fn new(mut files: BTreeMap<String, String>) -> Result<Self, InstallError> {
        let mut yaml = |name: &str| -> Result<Option<Json>, InstallError> {
            let Some(text) = files.remove(name) else { return Ok(None) };
            let value = parse_value(&text, &Limits::default());
            value.map(Some).map_err(|error| InstallError::input(name, error))
        };
        let metadata = yaml("Chart.yaml")?.ok_or_else(|| InstallError::input("Chart.yaml", "the file is missing"))?;
        let (values, schema) = (yaml("values.yaml")?, yaml("values.schema.json")?);
        let text = |name: &str| metadata[name].as_str().map(str::to_owned);
        let is_template = |path: &str| path.starts_with("templates/");
        let (templates, files) = files.into_iter().partition(|(path, _)| is_template(path));
        Ok(Self {
            name: text("name").ok_or_else(|| InstallError::input("Chart.yaml", "name is missing"))?,
            version: text("version").unwrap_or_default(),
            app_version: text("appVersion").unwrap_or_default(),
            kube_version: text("kubeVersion"),
            values: values.filter(Json::is_object).unwrap_or_else(|| Json::Object(serde_json::Map::new())),
            schema,
            templates,
            files,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_charts_are_those_of_the_repository() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/charts");
        let (embedded, read) =
            (Charts::embedded().expect("charts"), Charts::from_directory(&directory).expect("charts"));
        for (mut embedded, read) in [
            (embedded.base, read.base),
            (embedded.control_plane, read.control_plane),
            (embedded.gateway, read.gateway),
            (embedded.cni, read.cni),
            (embedded.ztunnel, read.ztunnel),
        ] {
            // `make` embeds the CRDs if they are built.
            embedded.files.remove("files/istio.yaml");
            assert_eq!(format!("{embedded:?}"), format!("{read:?}"));
            assert!(embedded.templates.len() > 1 && embedded.schema.is_some(), "{}", embedded.name);
        }
    }

    #[test]
    fn missing_directory_is_an_error_with_its_path() {
        let error = Charts::from_directory(Path::new("/nowhere/charts")).expect_err("no charts").to_string();
        assert!(error.starts_with("/nowhere/charts/base: No such file"), "{error}");
    }
}
