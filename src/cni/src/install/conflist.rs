//! Configurations of CNI: one plugin (`.conf`) or a list of plugins (`.conflist`).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};

use crate::plugin::{NAME, PluginConfig};

/// The text of a file with the entry alone.
pub(super) fn entry(plugin: &PluginConfig) -> Result<String> {
    Ok(format!("{:#}\n", serde_json::to_value(plugin)?))
}

/// The text of a configuration with the entry at the end of its list. An entry that exists is replaced.
pub(super) fn with_entry(text: &str, plugin: &PluginConfig) -> Result<String> {
    let mut list = read_list(text)?;
    let mut entry = serde_json::to_value(plugin)?;
    if let Some(entry) = entry.as_object_mut() {
        // The version is that of the list.
        entry.remove("cniVersion");
    }
    let plugins = plugins(&mut list)?;
    plugins.retain(|plugin| plugin["type"] != NAME);
    plugins.push(entry);
    Ok(format!("{:#}\n", Value::Object(list)))
}

/// The text of a configuration without the entry.
pub(super) fn without_entry(text: &str) -> Result<String> {
    let mut list = read_list(text)?;
    plugins(&mut list)?.retain(|plugin| plugin["type"] != NAME);
    Ok(format!("{:#}\n", Value::Object(list)))
}

fn read_list(text: &str) -> Result<Map<String, Value>> {
    let Value::Object(mut config) = serde_json::from_str(text).context("not JSON")? else { bail!("not an object") };
    if config.contains_key("type") {
        config.remove("cniVersion");
        let list = json!({"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [config]});
        let Value::Object(list) = list else { bail!("not an object") };
        return Ok(list);
    }
    Ok(config)
}

fn plugins(list: &mut Map<String, Value>) -> Result<&mut Vec<Value>> {
    let plugins = list.get_mut("plugins").and_then(Value::as_array_mut);
    plugins.context("plugins: not a list")
}

/// The file of the primary plugin: `name`, as `.conf` or `.conflist`, or the first valid file of the directory that is not
/// `owned`.
pub(super) fn primary(directory: &Path, name: &str, owned: Option<&str>) -> Result<PathBuf> {
    if !name.is_empty() {
        let named = directory.join(name);
        let candidates = [named.clone(), named.with_extension("conflist"), named.with_extension("conf")];
        let found = candidates.into_iter().find(|path| path.is_file());
        return found.with_context(|| format!("{}: no such file, waiting for it", named.display()));
    }
    let entries = std::fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let found = files.into_iter().find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        Some(name) != owned && !name.starts_with('.') && is_valid(path)
    });
    found.with_context(|| format!("{}: no configuration of a primary plugin, waiting for one", directory.display()))
}

/// As the kubelet decides: a list has plugins, a single configuration has a type.
fn is_valid(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let config: Value = serde_json::from_str(&text).unwrap_or_default();
    match extension {
        "conflist" => config["plugins"].as_array().is_some_and(|plugins| !plugins.is_empty()),
        // Not a configuration of this plugin alone, of an installation without a chain.
        "conf" => config["type"].as_str().is_some_and(|kind| !kind.is_empty() && kind != NAME),
        _ => false,
    }
}
