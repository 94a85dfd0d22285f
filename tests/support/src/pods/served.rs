//! Compares Envoy's `config_dump` with that of the control plane: an Envoy has to hold exactly what it was sent.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sluice_proto::json::{decode_any, encode_any};

use super::mesh::Mesh;
use super::pod_set::Pod;
use crate::canonical::{canonical_dump, name_of, sorted_text};
use crate::parity::compare::compare;

/// Number of differing paths to report for each resource.
const MAX_PATHS: usize = 4;

/// Section of the dump, list in it, and path of the resource in the elements of the list.
const LISTS: [(&str, &str, &[&str]); 3] = [
    ("ClustersConfigDump", "dynamicActiveClusters", &["cluster"]),
    ("ListenersConfigDump", "dynamicListeners", &["activeState", "listener"]),
    ("RoutesConfigDump", "dynamicRouteConfigs", &["routeConfig"]),
];

/// The differences between what the Envoy of a pod holds and what it was sent, one line for each. Also the number of equal
/// resources, so that a test can detect that both are empty.
///
/// # Errors
/// Envoy or the control plane does not respond, or Envoy's dump cannot be decoded.
pub async fn compare_with_served(mesh: &Mesh, pod: &Pod) -> Result<(usize, Vec<String>)> {
    let envoy = pod.envoy.as_ref().context("the pod has an Envoy")?;
    let proxy = format!("{}.{}", pod.workload.name, pod.workload.namespace);
    let (status, served) = mesh.server.get(&format!("/debug/config_dump?proxyID={proxy}&include_eds")).await?;
    ensure!(status == 200, "the control plane answers {status} for {proxy}: {served}");
    let served: Value = serde_json::from_str(&served).context("read the control plane's dump")?;
    let held: Value =
        serde_json::from_str(&envoy.admin("/config_dump?include_eds").await?).context("read Envoy's dump")?;
    let mut equal = 0;
    let mut differences = Vec::new();
    for (section, list, path) in LISTS {
        let expected = canonical_dump(resources(&served, section, list, path));
        let mut actual = Vec::new();
        for resource in resources(&held, section, list, path) {
            let decoded = decode_any(&resource).with_context(|| format!("{section}: {}", sorted_text(&resource)))?;
            let unknown = decoded.unknown.iter().map(|field| format!("{section}: Envoy has the unknown field {field}"));
            differences.extend(unknown);
            actual.push(encode_any(&decoded.message.0, &decoded.message.1));
        }
        let outcome = compare(Some(&expected), Some(&canonical_dump(actual)), MAX_PATHS);
        equal += outcome.equal;
        differences
            .extend(outcome.missing.iter().map(|name| format!("{list}: {name} is served, but Envoy does not have it")));
        // A draining listener keeps its route table until it is removed.
        let is_draining = |name: &str| section == "RoutesConfigDump" && !listener_contains(&held, name);
        let extra = outcome.extra.iter().filter(|name| !is_draining(name));
        differences.extend(extra.map(|name| format!("{list}: Envoy has {name}, but it is not served")));
        for (name, paths) in outcome.differing {
            differences
                .push(format!("{list}: {name} differs (golden is what was served):\n    {}", paths.join("\n    ")));
        }
    }
    let (same, other) = endpoints(&served, &held);
    differences.extend(other);
    Ok((equal + same, differences))
}

/// Whether an active listener of a dump contains this text as a value, such as the name of its route table.
fn listener_contains(dump: &Value, text: &str) -> bool {
    let (section, list, path) = LISTS[1];
    resources(dump, section, list, path).iter().any(|listener| sorted_text(listener).contains(&format!("\"{text}\"")))
}

/// A field by its name in either dump: Envoy writes `snake_case`.
fn field<'v>(value: &'v Value, name: &str) -> &'v Value {
    let snake = name.chars().fold(String::new(), |mut out, letter| {
        if letter.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
        out
    });
    value.get(name).or_else(|| value.get(&snake)).unwrap_or(&Value::Null)
}

fn elements<'v>(dump: &'v Value, section: &str, list: &str) -> impl Iterator<Item = &'v Value> {
    let sections = dump["configs"].as_array().into_iter().flatten();
    let named = move |part: &&Value| part["@type"].as_str().is_some_and(|name| name.ends_with(&format!(".{section}")));
    let found: Vec<&Value> = sections.filter(named).collect();
    found.into_iter().flat_map(move |part| field(part, list).as_array().into_iter().flatten())
}

fn resources(dump: &Value, section: &str, list: &str, path: &[&str]) -> Vec<Value> {
    let resource = |element| path.iter().fold(element, |value, name| field(value, name));
    // A listener that is being replaced has no active state for a moment.
    elements(dump, section, list).map(resource).filter(|resource| !resource.is_null()).cloned().collect()
}

/// Properties of endpoints that are in both dumps, by endpoint: Envoy's dump has its hosts, not the received message.
type Hosts = BTreeMap<String, Value>;

/// Compares the assignments, host by host.
fn endpoints(served: &Value, held: &Value) -> (usize, Vec<String>) {
    let section = |dump| {
        let assignments = elements(dump, "EndpointsConfigDump", "dynamicEndpointConfigs");
        let assignments = assignments.map(|element| field(element, "endpointConfig"));
        assignments.map(|assignment| (name(assignment), hosts(assignment))).collect::<BTreeMap<_, _>>()
    };
    let (served, held) = (section(served), section(held));
    let mut equal = 0;
    let mut differences = Vec::new();
    for (name, expected) in &served {
        let none = Hosts::new();
        // Envoy's dump has no entry for a cluster without hosts.
        let actual = held.get(name).unwrap_or(&none);
        let names: BTreeSet<&String> = expected.keys().chain(actual.keys()).collect();
        let before = differences.len();
        for host in names {
            let (expected, actual) = (expected.get(host), actual.get(host));
            if expected != actual {
                let text = |host: Option<&Value>| host.map_or_else(|| "nothing".to_owned(), sorted_text);
                differences.push(format!(
                    "endpoint {host} of {name}: served {}, Envoy has {}",
                    text(expected),
                    text(actual)
                ));
            }
        }
        equal += usize::from(differences.len() == before);
    }
    (equal, differences)
}

fn name(assignment: &Value) -> String {
    let name = name_of(assignment);
    if name.is_empty() { field(assignment, "clusterName").as_str().unwrap_or_default().to_owned() } else { name }
}

fn hosts(assignment: &Value) -> Hosts {
    let mut hosts = Hosts::new();
    for group in field(assignment, "endpoints").as_array().into_iter().flatten() {
        let locality = &group["locality"];
        let locality_name =
            ["region", "zone", "subZone"].map(|part| field(locality, part).as_str().unwrap_or_default());
        let priority = group["priority"].as_u64().unwrap_or(0);
        for host in field(group, "lbEndpoints").as_array().into_iter().flatten() {
            let address = field(&host["endpoint"]["address"], "socketAddress");
            let port = field(address, "portValue");
            let key = format!(
                "{}:{port} in {} at {priority}",
                address["address"].as_str().unwrap_or("?"),
                locality_name.join("/")
            );
            let weight = field(host, "loadBalancingWeight").as_u64().unwrap_or(1);
            let metadata = host.get("metadata").map(|metadata| field(metadata, "filterMetadata").clone());
            hosts.insert(key, serde_json::json!({ "weight": weight, "metadata": metadata.unwrap_or_default() }));
        }
    }
    hosts
}
