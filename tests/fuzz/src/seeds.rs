//! The inputs to mutate: every object and proxy of the cases.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sluice_model::Text;
use sluice_parse::yaml::{Limits, parse_documents, parse_value};
use sluice_testkit::parity::case::{Case, cases};

/// Number of values that are stored for each field name.
const MAX_SEEDS_PER_KIND: usize = 400;

/// An object and the cluster it is read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Seed {
    /// Id of the cluster.
    pub cluster: Text,
    /// The object. Mesh config in it is parsed, so that it is mutated as a value; see [`Seed::rendered`].
    pub object: Value,
}

impl Seed {
    /// An object of a file. The text in a ConfigMap of the mesh is parsed.
    #[must_use]
    pub fn new(cluster: Text, mut object: Value) -> Self {
        for key in ["/data/mesh", "/data/meshNetworks"] {
            if let Some(text) = object.pointer_mut(key)
                && let Some(Ok(value)) = text.as_str().map(|text| parse_value(text, &Limits::default()))
                && value.is_object()
            {
                *text = value;
            }
        }
        Self { cluster, object }
    }

    /// The object as a source would deliver it.
    #[must_use]
    pub fn rendered(&self) -> Value {
        let mut object = self.object.clone();
        for key in ["/data/mesh", "/data/meshNetworks"] {
            if let Some(value) = object.pointer_mut(key)
                && !value.is_string()
            {
                *value = Value::String(value.to_string());
            }
        }
        object
    }

    /// The `kind`; empty if there is none.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.object.get("kind").and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether its kind configures the mesh.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        let version = self.object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        version.contains("istio.io/") || version.starts_with("gateway.networking") || self.kind() == "ConfigMap"
    }
}

/// The objects of one case, and the nodes that connect.
#[derive(Clone, Debug, Default)]
pub struct CaseMesh {
    /// `family/NN-slug`.
    pub name: String,
    /// Objects.
    pub objects: Vec<Seed>,
    /// Nodes of proxies, as protobuf JSON.
    pub nodes: Vec<Value>,
}

/// All inputs to mutate and values to insert.
#[derive(Clone, Debug, Default)]
pub struct Seeds {
    /// A mesh for each case.
    pub cases: Vec<CaseMesh>,
    /// Objects that belong to no case.
    pub other_objects: Vec<Seed>,
    /// Values by the name of their field.
    pub values: BTreeMap<String, Vec<Value>>,
    /// Words in capitals, such as those of enums.
    pub words: Vec<String>,
    /// Resources of goldens, as material for patches.
    pub resources: Vec<Value>,
}

impl Seeds {
    /// Reads the cases below `root`.
    ///
    /// # Errors
    /// A case cannot be read, or there is none.
    pub fn read(root: &Path) -> Result<Self> {
        let mut seeds = Self::default();
        for case in cases(root, |_, _| true)? {
            seeds.cases.push(case_mesh(&case)?);
        }
        for kind in list(&root.join("validation"))? {
            for file in list(&kind)? {
                seeds.other_objects.extend(objects(&file, &"Kubernetes".into())?);
            }
        }
        ensure!(!seeds.cases.is_empty(), "there are no cases in {}", root.display());
        let (mut values, mut words) = (BTreeMap::<String, BTreeSet<String>>::new(), BTreeSet::new());
        for seed in seeds.cases.iter().flat_map(|case_mesh| &case_mesh.objects).chain(&seeds.other_objects) {
            collect(&seed.object, &mut values, &mut words);
        }
        let parse = |texts: BTreeSet<String>| texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect();
        seeds.values = values.into_iter().map(|(name, texts)| (name, parse(texts))).collect();
        seeds.words = words.into_iter().collect();
        Ok(seeds)
    }

    /// Adds the resources of a family's goldens, as material for patches.
    ///
    /// # Errors
    /// A golden cannot be read.
    pub fn read_resources(&mut self, root: &Path, family: &str) -> Result<()> {
        for case in cases(root, |of, _| of == family)? {
            for proxy in &case.proxies {
                let golden = case.golden(&proxy.name)?;
                self.resources.extend(golden.into_values().flatten().flatten().take(40));
            }
        }
        Ok(())
    }
}

fn case_mesh(case: &Case) -> Result<CaseMesh> {
    let mut case_mesh = CaseMesh { name: case.id(), ..CaseMesh::default() };
    for file in list(&case.dir)? {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(middle) = name.strip_prefix("input").and_then(|rest| rest.strip_suffix(".yaml")) else { continue };
        let cluster = middle.strip_prefix('.').unwrap_or("Kubernetes").into();
        case_mesh.objects.extend(objects(&file, &cluster)?);
    }
    case_mesh.nodes = case.proxies.iter().map(|proxy| proxy.node.clone()).collect();
    Ok(case_mesh)
}

/// The objects of a file.
///
/// # Errors
/// The file cannot be read.
pub fn objects(file: &Path, cluster: &Text) -> Result<Vec<Seed>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let documents = parse_documents(&text, &Limits::default());
    Ok(documents.into_iter().flatten().map(|document| Seed::new(cluster.clone(), document.value)).collect())
}

/// The entries of a directory, sorted.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let mut paths: Vec<_> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    paths.sort();
    Ok(paths)
}

fn collect(value: &Value, values: &mut BTreeMap<String, BTreeSet<String>>, words: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let kept = values.entry(name.clone()).or_default();
                let text = value.to_string();
                if kept.len() < MAX_SEEDS_PER_KIND && text.len() < 4096 {
                    kept.insert(text);
                }
                collect(value, values, words);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, values, words)),
        Value::String(text) if text.len() > 1 && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'_') => {
            words.insert(text.clone());
        }
        _ => {}
    }
}
