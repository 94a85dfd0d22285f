//! The objects of the mesh in the cluster, and events.

use std::io;
use std::time::Duration;

use http::Request;
use http::header::{ACCEPT, HeaderValue};
use kube::Client;
use serde_json::Value;
use sluice_install::to_yaml;

use super::archive::Archive;
use super::deadline::Deadline;
use super::pod_filter::PodSelection;
use super::redaction::redact_object;
use crate::analyze::live::{self, KINDS};
use crate::answer_output::{list, text};

/// Kinds that are not read as a whole: Secrets have secrets, ConfigMaps of applications may, and CRDs are large.
const SPECIAL_PLURALS: [&str; 3] = ["configmaps", "customresourcedefinitions", "secrets"];
/// ConfigMaps of the control plane, and the beginnings of their names with a revision.
const CONFIG_MAPS: [&str; 3] = ["istio", "istio-sidecar-injector", "istio-ca-root-cert"];
/// The form of Secrets that has no data.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// Events that are read.
const MAX_EVENTS: usize = 5_000;
/// Time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Adds all kinds, each as a file of YAML documents.
pub(super) async fn add_all(
    client: &Client,
    selection: &PodSelection,
    istio_namespace: &str,
    deadline: &Deadline,
    archive: &mut Archive,
) -> io::Result<()> {
    for (api, plural, kind) in KINDS {
        if SPECIAL_PLURALS.contains(plural) {
            continue;
        }
        if deadline.is_over() {
            archive.note("cluster", "not complete: --timeout");
            return Ok(());
        }
        let api_version = api.trim_start_matches("apis/").trim_start_matches("api/");
        let read = bounded(live::list(client, api, plural)).await;
        let keep = |object: &Value| {
            let name = if *plural == "namespaces" { "name" } else { "namespace" };
            let namespace = text(&object["metadata"], name);
            namespace.is_empty() || namespace == istio_namespace || selection.has_namespace(namespace)
        };
        let group = api_version.split_once('/').map_or(String::new(), |(group, _)| format!(".{group}"));
        add(archive, &format!("cluster/objects/{plural}{group}.yaml"), read, (api_version, *kind), keep)?;
    }
    let config_maps = format!("api/v1/namespaces/{istio_namespace}");
    let read = bounded(live::list(client, &config_maps, "configmaps")).await;
    let is_own = |object: &Value| {
        let name = text(&object["metadata"], "name");
        CONFIG_MAPS.iter().any(|own| name == *own || name.strip_prefix(own).is_some_and(|rest| rest.starts_with('-')))
    };
    add(archive, "cluster/objects/configmaps.yaml", read, ("v1", "ConfigMap"), is_own)?;
    let read = bounded(secret_metadata(client)).await;
    let in_report = |object: &Value| {
        let namespace = text(&object["metadata"], "namespace");
        namespace == istio_namespace || selection.has_namespace(namespace)
    };
    add(archive, "cluster/objects/secrets-without-data.yaml", read, ("v1", "Secret"), in_report)?;
    let read = bounded(events(client)).await;
    add(archive, "cluster/events.yaml", read, ("v1", "Event"), in_report)?;
    let version = bounded(get(client, "/version", None)).await;
    match version {
        Ok(version) => archive.add_json("cluster/version.json", version),
        Err(reason) => {
            archive.note("cluster/version.json", &reason);
            Ok(())
        }
    }
}

async fn bounded<T>(read: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let timed_out = |_| Err(format!("no answer in {REQUEST_TIMEOUT:?}"));
    tokio::time::timeout(REQUEST_TIMEOUT, read).await.unwrap_or_else(timed_out)
}

/// Adds the objects that are kept; nothing if there are none.
fn add(
    archive: &mut Archive,
    name: &str,
    read: Result<Vec<Value>, String>,
    (api_version, kind): (&str, &str),
    keep: impl Fn(&Value) -> bool,
) -> io::Result<()> {
    let objects = match read {
        Ok(objects) => objects,
        Err(reason) => {
            archive.note(name, &reason);
            return Ok(());
        }
    };
    let mut documents = String::new();
    for mut object in objects.into_iter().filter(|object| keep(object)) {
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        if kind != "Secret" {
            // Of a Secret, they tell the names of the keys.
            object["metadata"].as_object_mut().map(|metadata| metadata.remove("managedFields"));
        }
        redact_object(&mut object);
        documents.push_str("---\n");
        documents.push_str(&to_yaml(&object).map_err(io::Error::other)?);
    }
    if documents.is_empty() { Ok(()) } else { archive.add_text(name, &documents) }
}

async fn get(client: &Client, path: &str, accept: Option<&'static str>) -> Result<Value, String> {
    let mut request = Request::get(path).body(Vec::new()).map_err(|error| format!("{path}: {error}"))?;
    if let Some(accept) = accept {
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
    }
    client.request(request).await.map_err(|error| format!("{path}: {}", sluice_kube::chain(&error)))
}

/// The metadata of all Secrets. Their data is not read.
async fn secret_metadata(client: &Client) -> Result<Vec<Value>, String> {
    let answer = get(client, "/api/v1/secrets", Some(METADATA_ONLY)).await?;
    match answer["kind"].as_str() {
        Some("PartialObjectMetadataList") => Ok(list(&answer, "items").to_vec()),
        _ => Err("the API server does not answer without the data of Secrets".to_owned()),
    }
}

/// The newest events, in order.
async fn events(client: &Client) -> Result<Vec<Value>, String> {
    let mut events = live::list(client, "api/v1", "events").await?;
    let time = |event: &Value| {
        let times = ["lastTimestamp", "eventTime"].map(|field| text(event, field).to_owned());
        times.into_iter().find(|time| !time.is_empty()).unwrap_or_default()
    };
    events.sort_by_key(time);
    let newest = events.len().saturating_sub(MAX_EVENTS);
    Ok(events.split_off(newest))
}
