//! The environment of a container: fields of its pod, and references to variables.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The address of the node.
const HOST_IP: &str = "192.0.2.10";

/// The environment of a container of a pod at an address.
pub(super) fn environment(pod: &Value, container: &Value, address: &str) -> Result<BTreeMap<String, String>> {
    let mut environment = BTreeMap::new();
    for variable in container["env"].as_array().into_iter().flatten() {
        let name = super::text(&variable["name"])?;
        let from = &variable["valueFrom"];
        let value = match (from["fieldRef"]["fieldPath"].as_str(), &from["resourceFieldRef"]) {
            (Some(path), _) => field(pod, path, address).with_context(|| format!("variable {name}"))?,
            (None, Value::Null) if from.is_null() => {
                expand(variable["value"].as_str().unwrap_or_default(), &environment)
            }
            (None, resource @ Value::Object(_)) => {
                limit(container, resource).with_context(|| format!("variable {name}"))?
            }
            (None, _) => bail!("variable {name}: the source {from} is not supported"),
        };
        environment.insert(name.to_owned(), value);
    }
    Ok(environment)
}

/// The text of a field of a pod.
pub(super) fn field(pod: &Value, path: &str, address: &str) -> Result<String> {
    let metadata = &pod["metadata"];
    let value = match path {
        "status.podIP" => return Ok(address.to_owned()),
        "status.hostIP" => return Ok(HOST_IP.to_owned()),
        "metadata.name" => &metadata["name"],
        "metadata.namespace" => &metadata["namespace"],
        "metadata.uid" => &metadata["uid"],
        "spec.nodeName" => &pod["spec"]["nodeName"],
        "spec.serviceAccountName" => &pod["spec"]["serviceAccountName"],
        "metadata.labels" | "metadata.annotations" => {
            let map = metadata[&path["metadata.".len()..]].as_object();
            let line = |(name, value): (&String, &Value)| format!("{name}={value}\n");
            return Ok(map.into_iter().flatten().map(line).collect());
        }
        _ => {
            let entry = path.strip_suffix("']").and_then(|path| path.split_once("['"));
            let Some((map, name)) = entry else { bail!("the field {path} is not supported") };
            let map = map.strip_prefix("metadata.").with_context(|| format!("the field {path} is not supported"))?;
            return Ok(metadata[map][name].as_str().unwrap_or_default().to_owned());
        }
    };
    value.as_str().map(str::to_owned).with_context(|| format!("the pod has the field {path}"))
}

/// The limit of a resource of a container, rounded up to a whole number of units.
fn limit(container: &Value, reference: &Value) -> Result<String> {
    let resource = super::text(&reference["resource"])?;
    let name = resource.strip_prefix("limits.").with_context(|| format!("{resource} is not supported"))?;
    let quantity = container["resources"]["limits"][name].as_str().unwrap_or("1");
    let digits = quantity.trim_end_matches(|c: char| c.is_alphabetic());
    let number: u64 = digits.parse().with_context(|| format!("the quantity {quantity} is not supported"))?;
    let number = match &quantity[digits.len()..] {
        "" => number,
        "m" => number.div_ceil(1000),
        "Mi" => number << 20,
        "Gi" => number << 30,
        unit => bail!("the unit {unit} is not supported"),
    };
    Ok(number.to_string())
}

/// A text with the values of variables for `$(NAME)`.
pub(super) fn expand(text: &str, environment: &BTreeMap<String, String>) -> String {
    let mut text = text.to_owned();
    for (name, value) in environment {
        text = text.replace(&format!("$({name})"), value);
    }
    text
}
