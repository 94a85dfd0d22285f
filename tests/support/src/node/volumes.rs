//! The volumes of a pod, as files below its directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{container, fields, identity, key, text};
use crate::cluster::Cluster;

/// Writes the files of the volumes that the containers of a pod mount. `false` if an object that a volume needs does not
/// exist yet.
pub(super) async fn write(cluster: &Cluster, pod: &Value, directory: &Path) -> Result<bool> {
    make(directory)?;
    let containers = ["initContainers", "containers"].map(|field| pod["spec"][field].as_array());
    let mounts =
        containers.into_iter().flatten().flatten().filter_map(|container| container["volumeMounts"].as_array());
    let mut written = BTreeSet::new();
    for mount in mounts.flatten() {
        let path = text(&mount["mountPath"])?;
        let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let volume = volumes.into_iter().find(|volume| volume["name"] == mount["name"]);
        let volume = volume.with_context(|| format!("there is a volume {}", mount["name"]))?;
        if path.starts_with("/var/run/secrets/kubernetes.io/") {
            // The kubeconfig replaces it.
            continue;
        }
        if !written.insert((path, text(&mount["name"])?)) {
            continue;
        }
        let Some(files) = files(cluster, pod, volume).await? else { return Ok(false) };
        let directory = make_below(directory, path.trim_start_matches('/'))?;
        for (name, content) in files {
            let file = directory.join(name);
            std::fs::write(&file, content).with_context(|| format!("write {}", file.display()))?;
            container::give(&file)?;
        }
    }
    Ok(true)
}

type Files = Vec<(String, Vec<u8>)>;

async fn files(cluster: &Cluster, pod: &Value, source: &Value) -> Result<Option<Files>> {
    if !source["emptyDir"].is_null() {
        return Ok(Some(Files::new()));
    }
    if let Some(sources) = source["projected"]["sources"].as_array() {
        let mut all = Files::new();
        for source in sources {
            let Some(files) = Box::pin(files(cluster, pod, source)).await? else { return Ok(None) };
            all.extend(files);
        }
        return Ok(Some(all));
    }
    for (kind, field, name) in [("Secret", "secret", "secretName"), ("ConfigMap", "configMap", "name")] {
        let source = &source[field];
        if let Some(name) = source[name].as_str() {
            let Some(object) = cluster.get("v1", kind, key(pod)?.0, name).await? else {
                return Ok((source["optional"] == true).then(Files::new));
            };
            let files = content(&object, kind == "Secret")?;
            return select(files, &source["items"]).map(Some);
        }
    }
    let token = &source["serviceAccountToken"];
    if token.is_object() {
        let account = (key(pod)?.0, text(&pod["spec"]["serviceAccountName"])?);
        let audience = token["audience"].as_str();
        let text = cluster.create_token(account, audience, Some(identity(pod)?)).await?;
        return Ok(Some(vec![(self::text(&token["path"])?.to_owned(), text.into_bytes())]));
    }
    if let Some(items) = source["downwardAPI"]["items"].as_array() {
        let file = |item: &Value| {
            let value = fields::field(pod, text(&item["fieldRef"]["fieldPath"])?, "")?;
            Ok((text(&item["path"])?.to_owned(), value.into_bytes()))
        };
        return items.iter().map(file).collect::<Result<_>>().map(Some);
    }
    bail!("the volume {source} is not supported")
}

fn content(object: &Value, is_encoded: bool) -> Result<Files> {
    let file = |(name, value): (&String, &Value)| {
        let value = text(value)?;
        let content = if is_encoded { STANDARD.decode(value).context("a value in Base64")? } else { value.into() };
        Ok((name.clone(), content))
    };
    object["data"].as_object().into_iter().flatten().map(file).collect()
}

/// The files of the keys of `items` under their paths; all if there are no items.
fn select(files: Files, items: &Value) -> Result<Files> {
    let Some(items) = items.as_array() else { return Ok(files) };
    let file = |item: &Value| {
        let key = text(&item["key"])?;
        let (_, content) =
            files.iter().find(|(name, _)| name == key).with_context(|| format!("there is a key {key}"))?;
        Ok((text(&item["path"])?.to_owned(), content.clone()))
    };
    items.iter().map(file).collect()
}

fn make(directory: &Path) -> Result<()> {
    if !directory.exists() {
        std::fs::create_dir(directory).with_context(|| format!("make {}", directory.display()))?;
        container::give(directory)?;
    }
    Ok(())
}

/// Makes a directory below another, and those between.
fn make_below(directory: &Path, path: &str) -> Result<PathBuf> {
    let mut directory = directory.to_owned();
    for part in Path::new(path) {
        directory.push(part);
        make(&directory)?;
    }
    Ok(directory)
}
