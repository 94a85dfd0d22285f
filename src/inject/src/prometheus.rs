//! Metrics of the application, which the agent scrapes and merges into those of the proxy (W08).

use serde_json::{Map, Value as Json, json};

use crate::annotations::{MERGE_METRICS, parse_bool};
use crate::mesh::Mesh;
use crate::pod::{PROXY, find_in_pod, find_in_pod_mut, meta_mut, meta_text};
use sluice_template::quoted;

/// Names of annotations in the form that Prometheus gives them.
const SCRAPE: &str = "prometheus_io_scrape";
const PORT: &str = "prometheus_io_port";
const PATH: &str = "prometheus_io_path";
const TARGETS: &str = "prometheus_istio_io_scrape_targets";
const SECURE_PORT: &str = "prometheus_istio_io_secure_port";
/// The variable with the configuration of the application.
const VARIABLE: &str = "ISTIO_PROMETHEUS_ANNOTATIONS";

/// Ports that the application cannot have.
const RESERVED: [(u16, &str); 9] = [
    (15000, "Envoy admin"),
    (15001, "outbound traffic capture"),
    (15004, "pilot debug"),
    (15006, "inbound traffic capture"),
    (15008, "HBONE tunnel"),
    (15020, "pilot-agent status / merged Prometheus"),
    (15021, "Envoy health"),
    (15053, "DNS proxy"),
    (15090, "Envoy Prometheus (already merged)"),
];

/// The name of an annotation as Prometheus reads it: `prometheus.io/port` and `prometheus-io/port` are equal.
fn sanitized(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

/// The annotations with a name.
fn named<'p>(pod: &'p Json, name: &'static str) -> impl Iterator<Item = &'p str> {
    let annotations = pod["metadata"]["annotations"].as_object().into_iter().flatten();
    annotations.filter(move |(key, _)| sanitized(key) == name).filter_map(|(_, value)| value.as_str())
}

/// The port that metrics are scraped from.
pub(crate) fn port(pod: &Json) -> Option<&str> {
    named(pod, PORT).next()
}

/// Removes the annotations that configure the scraping.
pub(crate) fn clear(pod: &mut Json) {
    if let Some(annotations) = pod.pointer_mut("/metadata/annotations").and_then(Json::as_object_mut) {
        annotations.retain(|key, _| ![SCRAPE, PORT, PATH, TARGETS].contains(&sanitized(key).as_str()));
    }
}

/// Passes the configuration of the application to the agent, and directs Prometheus to the agent.
pub(crate) fn merge(pod: &mut Json, mesh: &Mesh) -> Result<(), String> {
    let is_scraped = named(pod, SCRAPE).find_map(|value| parse_bool(value).ok()).unwrap_or(true);
    let annotated = meta_text(pod, "annotations", MERGE_METRICS).and_then(|value| parse_bool(value).ok());
    if !is_scraped || !annotated.unwrap_or_else(|| mesh.merges_metrics()) {
        return Ok(());
    }
    let agent_port = mesh.status_port().to_string();
    if port(pod) == Some(agent_port.as_str()) {
        return Ok(());
    }
    let configuration = configuration(pod, &agent_port)?;
    if let (Some(configuration), Some(proxy)) = (configuration, find_in_pod_mut(pod, PROXY)) {
        add_variable(proxy, VARIABLE, &configuration.to_string());
    }
    clear(pod);
    if let Some(annotations) = meta_mut(pod, "annotations") {
        annotations.insert("prometheus.io/port".to_owned(), json!(agent_port));
        annotations.insert("prometheus.io/path".to_owned(), json!("/stats/prometheus"));
        annotations.insert("prometheus.io/scrape".to_owned(), json!("true"));
    }
    Ok(())
}

fn add_variable(container: &mut Json, name: &str, value: &str) {
    if let Some(fields) = container.as_object_mut()
        && let Some(env) = fields.entry("env").or_insert_with(|| json!([])).as_array_mut()
    {
        env.push(json!({"name": name, "value": value}));
    }
}

/// What the agent scrapes; `None` if the pod configures nothing.
fn configuration(pod: &Json, agent_port: &str) -> Result<Option<Json>, String> {
    let text = |name| named(pod, name).last().unwrap_or_default();
    let (scrape, mut path, mut port) = (text(SCRAPE), text(PATH).to_owned(), text(PORT).to_owned());
    let targets = named(pod, TARGETS).last().and_then(parse_targets).unwrap_or_default();
    for target in &targets {
        check(&target.port, "target port", agent_port)
            .map_err(|error| format!("invalid prometheus scrape targets: {error}"))?;
    }
    // Agents that do not know the list scrape the first target.
    if let Some(first) = targets.first() {
        (path, port) = (first.path.clone(), first.port.clone());
    } else if !port.is_empty() {
        check(&port, "port", agent_port)
            .map_err(|error| format!("invalid prometheus scrape configuration: {error}"))?;
    }
    if scrape.is_empty() && path.is_empty() && port.is_empty() {
        return Ok(None);
    }
    let mut out = json!({"scrape": scrape, "path": path, "port": port});
    if !targets.is_empty() {
        let targets = targets.iter().map(|target| json!({"port": target.port, "path": target.path}));
        out["targets"] = Json::Array(targets.collect());
    }
    Ok(Some(out))
}

struct ScrapeTarget {
    port: String,
    path: String,
}

/// `PORT:PATH,...`; `None` if a port is missing.
fn parse_targets(text: &str) -> Option<Vec<ScrapeTarget>> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let targets = entries.map(|entry| {
        let (port, path) = entry.split_once(':').unwrap_or((entry, ""));
        let (port, path) = (port.trim(), path.trim());
        let path = if path.is_empty() { "/metrics" } else { path };
        (!port.is_empty()).then(|| ScrapeTarget { port: port.to_owned(), path: path.to_owned() })
    });
    targets.collect()
}

fn check(port: &str, noun: &str, agent_port: &str) -> Result<(), String> {
    let Some(number) = port.parse::<u16>().ok().filter(|number| *number > 0) else {
        return Err(format!("invalid {noun} {}", quoted(port)));
    };
    if number.to_string() == agent_port {
        return Err(format!("{noun} {port} conflicts with agent port"));
    }
    match RESERVED.iter().find(|(reserved, _)| *reserved == number) {
        Some((_, reason)) => Err(format!("{noun} {port} is reserved for Istio ({reason}) and cannot be scraped")),
        None => Ok(()),
    }
}

/// Names the port that serves metrics with TLS, if the proxy has one and the pod does not name it.
pub(crate) fn annotate_secure_port(pod: &mut Json) {
    if named(pod, SECURE_PORT).next().is_some() {
        return;
    }
    let proxy = find_in_pod(pod, PROXY);
    let mut env = proxy.and_then(|proxy| proxy["env"].as_array()).into_iter().flatten();
    let is_set = |variable: &&Json| {
        variable["name"].as_str() == Some("ENVOY_SECURE_MERGED_METRICS_PORT")
            && variable["value"].as_str().is_some_and(|value| !value.is_empty() && value != "0")
    };
    let Some(port) = env.find(is_set).map(|variable| variable["value"].clone()) else { return };
    let annotations: Option<&mut Map<String, Json>> = meta_mut(pod, "annotations");
    if let Some(annotations) = annotations {
        annotations.insert("prometheus.istio.io/secure-port".to_owned(), port);
    }
}
