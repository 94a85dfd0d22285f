//! Reads cases.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::ads::Kind;

/// One case: objects, the proxies that connect, and the recorded resources of each.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of the family: the parent directory.
    pub family: String,
    /// `NN-slug`.
    pub name: String,
    /// Directory of the case.
    pub dir: PathBuf,
    /// Environment of the server.
    pub env: BTreeMap<String, String>,
    /// The proxies that connect.
    pub proxies: Vec<CaseProxy>,
}

/// A proxy of a case.
#[derive(Clone, Debug, Deserialize)]
pub struct CaseProxy {
    /// Name of the proxy in the case.
    pub name: String,
    /// Its node, as protobuf JSON.
    pub node: Value,
    /// The types it subscribes to; those of a sidecar if empty.
    #[serde(default)]
    types: Vec<String>,
    /// The names it subscribes to, by type. For other types, those to which its resources refer.
    #[serde(default)]
    pub names: BTreeMap<Kind, Vec<String>>,
}

impl CaseProxy {
    /// The types it subscribes to, in order of first use.
    pub fn kinds(&self) -> Vec<Kind> {
        if !self.types.is_empty() {
            return self.types.iter().filter_map(|name| Kind::named(name)).collect();
        }
        let mut kinds = vec![Kind::Cds, Kind::Eds, Kind::Lds, Kind::Rds, Kind::Ecds];
        let capture = &self.node["metadata"]["DNS_CAPTURE"];
        if capture == "true" || capture == true {
            kinds.push(Kind::Nds);
        }
        kinds
    }

    /// The value of `x-forwarded-client-cert` with its identity.
    pub(crate) fn forwarded_identity(&self) -> String {
        let metadata = |key: &str| self.node["metadata"][key].as_str().unwrap_or("default").to_owned();
        let (namespace, account) = (metadata("NAMESPACE"), metadata("SERVICE_ACCOUNT"));
        format!(
            "By=spiffe://cluster.local/ns/istio-system/sa/istiod;URI=spiffe://cluster.local/ns/{namespace}/sa/{account}"
        )
    }
}

impl Case {
    /// Reads one case.
    ///
    /// # Errors
    /// A file is missing or invalid.
    pub fn read(dir: &Path) -> Result<Self> {
        let part = |path: Option<&Path>| -> Result<String> {
            let name = path.and_then(Path::file_name).and_then(|name| name.to_str());
            Ok(name.with_context(|| format!("name the case in {}", dir.display()))?.to_owned())
        };
        let proxies: Vec<CaseProxy> = serde_json::from_value(read_json(&dir.join("proxies.json"))?)
            .with_context(|| format!("read the proxies of {}", dir.display()))?;
        let env_file = dir.join("env.json");
        let env = if env_file.exists() { serde_json::from_value(read_json(&env_file)?)? } else { BTreeMap::new() };
        Ok(Self { family: part(dir.parent())?, name: part(Some(dir))?, dir: dir.to_owned(), env, proxies })
    }

    /// `family/NN-slug`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.family, self.name)
    }

    /// The resources that `proxy` is expected to receive, by type; `None` for a type that the server never answers.
    ///
    /// # Errors
    /// A file is not a JSON array of resources or `null`.
    pub fn golden(&self, proxy: &str) -> Result<BTreeMap<Kind, Option<Vec<Value>>>> {
        let dir = self.dir.join("golden").join(proxy);
        let mut out = BTreeMap::new();
        for path in entries(&dir)? {
            let kind = path.file_stem().and_then(|stem| stem.to_str()).and_then(Kind::named);
            let kind = kind.with_context(|| format!("{} is not named after a type", path.display()))?;
            let dump: Option<Vec<Value>> =
                serde_json::from_value(read_json(&path)?).with_context(|| format!("read {}", path.display()))?;
            out.insert(kind, dump);
        }
        Ok(out)
    }

    /// Writes the objects into one directory for each cluster, as the server reads them. Returns the directory of the
    /// primary cluster, and those of remote clusters by id.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub(crate) fn write_objects(&self, into: &Path) -> Result<(PathBuf, BTreeMap<String, PathBuf>)> {
        let copy_to = |name: &str, file: &Path| -> Result<PathBuf> {
            let dir = into.join(name);
            std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
            std::fs::copy(file, dir.join("input.yaml")).with_context(|| format!("copy {}", file.display()))?;
            Ok(dir)
        };
        let primary = copy_to("primary", &self.dir.join("input.yaml"))?;
        let mut remotes = BTreeMap::new();
        for path in entries(&self.dir)? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let cluster = name.strip_prefix("input.").and_then(|rest| rest.strip_suffix(".yaml"));
            if let Some(cluster) = cluster.filter(|cluster| !cluster.is_empty()) {
                remotes.insert(cluster.to_owned(), copy_to(&format!("remote-{cluster}"), &path)?);
            }
        }
        Ok((primary, remotes))
    }
}

/// Directory of the repository's cases.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cases")
}

/// All cases below `root`, in order; `is_selected` filters by family and by part of the name.
///
/// # Errors
/// A case cannot be read.
pub fn cases(root: &Path, is_selected: impl Fn(&str, &str) -> bool) -> Result<Vec<Case>> {
    let not_families = BTreeSet::from(["validation", "inject"]);
    let mut out = Vec::new();
    for family in entries(root)?.into_iter().filter(|path| path.is_dir()) {
        let family_name = family.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if not_families.contains(family_name) {
            continue;
        }
        for dir in entries(&family)? {
            let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if dir.join("proxies.json").exists() && is_selected(family_name, name) {
                out.push(Case::read(&dir)?);
            }
        }
    }
    Ok(out)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        out.push(entry.with_context(|| format!("list {}", dir.display()))?.path());
    }
    out.sort();
    Ok(out)
}

fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))
}
