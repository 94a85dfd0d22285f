//! What the control plane writes equals what istiod wrote to a real API server for the same objects (O17, S10, S13, C11).
//!
//! `cases/FAMILY/CASE/written.yaml` has the objects that istiod created or changed, of the kinds that Sluice writes. `T` is any
//! time, `PEM` certificates, `BASE64-PEM` the same encoded, `NOT-STORED` a key, `UID-OF-…` the UID of an object. Objects of the
//! input that are not in it must stay unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_parse::yaml::{Limits, parse_documents};
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol};
use sluice_testkit::cluster::Cluster;
use sluice_testkit::secure::ClientTls;

use crate::fixture::{ALL, RunningControlPlane, SYSTEM, apply_templates, manifest, start_with_crds, until};
use crate::identity::connect;

/// Objects that differ, each with the reason.
const DIFFERENCES: [(&str, &str); 0] = [];
/// Time in which all objects have to be as recorded.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time after which objects that must not be written are checked.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// Kinds whose objects of the input are compared.
const COMPARED: [&str; 4] =
    ["Ingress", "MutatingWebhookConfiguration", "ServiceEntry", "ValidatingWebhookConfiguration"];

/// Kinds of the cases for resources on which nothing that is written depends.
const WITHOUT_EFFECT: [&str; 5] = ["EndpointSlice", "Node", "Pod", "Service", "ServiceAccount"];

struct Case {
    name: String,
    input: Vec<Value>,
    written: Vec<Value>,
    env: BTreeMap<String, String>,
    proxy: Option<Value>,
}

fn documents(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let parsed = parse_documents(&text, &Limits::default()).into_iter();
    parsed.map(|document| Ok(document.map_err(|error| anyhow::anyhow!("{error:?}"))?.value)).collect()
}

fn json_file(path: PathBuf) -> Result<Option<Value>> {
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).with_context(|| format!("parse {}", path.display()))?)),
        Err(_) => Ok(None),
    }
}

impl Case {
    /// The cases of a family, in order.
    fn all(family: &str) -> Result<Vec<Self>> {
        let mut cases = Vec::new();
        for entry in std::fs::read_dir(manifest("tests/cluster/cases").join(family)).context("read the cases")? {
            let directory = entry?.path();
            let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            let (of_dataflow, keeps) = match name.strip_suffix(".kept") {
                Some(name) => (name, true),
                None => (name.as_str(), false),
            };
            let of_dataflow = manifest("tests/cases").join(family).join(of_dataflow);
            let source = if directory.join("input.yaml").exists() { &directory } else { &of_dataflow };
            let env = json_file(source.join("env.json"))?.unwrap_or(json!({}));
            let proxies = json_file(directory.join("proxies.json"))?;
            let mut input = documents(&source.join("input.yaml"))?;
            input.retain(|object| {
                family == "own" || !WITHOUT_EFFECT.contains(&object["kind"].as_str().unwrap_or_default())
            });
            let has_status = |object: &Value| keeps || object["kind"] == "Service";
            input.iter_mut().filter(|object| !has_status(object)).for_each(|object| object["status"] = Value::Null);
            cases.push(Self {
                written: documents(&directory.join("written.yaml"))?,
                env: serde_json::from_value(env).context("the environment")?,
                proxy: proxies.map(|proxies| proxies[0].clone()),
                input,
                name: format!("{family}/{name}"),
            });
        }
        cases.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(cases)
    }

    /// Creates the objects of the input, as they are without a control plane.
    async fn apply(&self, cluster: &Cluster) -> Result<()> {
        for object in &self.input {
            let (kind, namespace, name) = key(object);
            let mut object = object.clone();
            let status = object.as_object_mut().and_then(|object| object.remove("status")).unwrap_or_default();
            for field in ["creationTimestamp", "resourceVersion", "uid", "generation"] {
                object["metadata"].as_object_mut().map(|metadata| metadata.remove(field));
            }
            if !namespace.is_empty() && cluster.get("v1", "Namespace", "", &namespace).await?.is_none() {
                cluster.create_namespace(&namespace, json!({})).await?;
            }
            if is_namespaced(&kind) && object["metadata"]["namespace"].is_null() {
                object["metadata"]["namespace"] = namespace.as_str().into();
            }
            cluster.apply(&object).await.with_context(|| format!("{}: {kind} {namespace}/{name}", self.name))?;
            if status.is_object() {
                let version = object["apiVersion"].as_str().unwrap_or_default();
                cluster.write_status(version, &kind, (&namespace, &name), status).await?;
            }
        }
        Ok(())
    }

    /// The objects that differ from the recorded ones, and the number of compared objects.
    async fn compare(&self, cluster: &Cluster) -> Result<(Vec<String>, usize)> {
        let mut differences = Vec::new();
        let mut pools = Pools::default();
        let mut listed = BTreeSet::new();
        for expected in &self.written {
            let (kind, namespace, name) = key(expected);
            listed.insert((kind.clone(), namespace.clone(), name.clone()));
            let version = expected["apiVersion"].as_str().unwrap_or_default();
            let actual = cluster.get(version, &kind, &namespace, &name).await?.unwrap_or_default();
            if let Some(difference) = differs(&kind, expected, &actual, &mut pools) {
                differences.push(format!("{} {kind} {namespace}/{name}: {difference}", self.name));
            }
        }
        let others = self.input.iter().filter(|object| {
            COMPARED.contains(&object["kind"].as_str().unwrap_or_default()) && !listed.contains(&key(object))
        });
        let mut compared = self.written.len();
        for object in others {
            let (kind, namespace, name) = key(object);
            let version = object["apiVersion"].as_str().unwrap_or_default();
            let actual = cluster.get(version, &kind, &namespace, &name).await?.unwrap_or_default();
            compared += 1;
            if let Some(difference) = is_changed(object, &actual) {
                differences.push(format!("{} {kind} {namespace}/{name}: {difference}", self.name));
            }
        }
        // ConfigMaps of other namespaces.
        for namespace in self.input.iter().filter(|object| object["kind"] == "Namespace") {
            let name = namespace["metadata"]["name"].as_str().unwrap_or_default();
            for config_map in ["istio-ca-root-cert", "istio-ca-crl"] {
                if !listed.contains(&("ConfigMap".to_owned(), name.to_owned(), config_map.to_owned()))
                    && cluster.get("v1", "ConfigMap", name, config_map).await?.is_some()
                {
                    differences.push(format!("{} ConfigMap {name}/{config_map}: is not to be written", self.name));
                    compared += 1;
                }
            }
        }
        Ok((differences, compared))
    }
}

fn is_namespaced(kind: &str) -> bool {
    !matches!(
        kind,
        "Namespace"
            | "IngressClass"
            | "GatewayClass"
            | "MutatingWebhookConfiguration"
            | "ValidatingWebhookConfiguration"
    )
}

fn key(object: &Value) -> (String, String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&object["kind"]);
    let namespace = text(&object["metadata"]["namespace"]);
    let namespace = if namespace.is_empty() && is_namespaced(&kind) { "default".to_owned() } else { namespace };
    (kind, namespace, text(&object["metadata"]["name"]))
}

/// Allocated addresses: their order follows that of a queue in the reference.
#[derive(Default)]
struct Pools {
    hosts: BTreeSet<u16>,
}

impl Pools {
    /// Checks the addresses of a ServiceEntry: the hosts, and for each an address of either family with the same number.
    fn differ(&mut self, expected: &Value, actual: &Value) -> Option<String> {
        let list = |addresses: &Value| -> Vec<(String, String, u16)> {
            let address = |it: &Value| {
                let (prefix, number) = split(it["value"].as_str()?.parse().ok()?);
                Some((it["host"].as_str()?.to_owned(), prefix, number))
            };
            addresses.as_array().into_iter().flatten().filter_map(address).collect()
        };
        let names = |list: &[(String, String, u16)]| -> Vec<(String, String)> {
            list.iter().map(|(host, prefix, _)| (host.clone(), prefix.clone())).collect()
        };
        let (expected_list, actual_list) = (list(expected), list(actual));
        let is_list = actual.is_array() == expected.is_array();
        if !is_list || names(&expected_list) != names(&actual_list) {
            return Some(format!("addresses are {actual}, istiod writes {expected}"));
        }
        let numbers: BTreeMap<&str, BTreeSet<u16>> = actual_list.iter().fold(BTreeMap::new(), |mut numbers, it| {
            numbers.entry(it.0.as_str()).or_insert_with(BTreeSet::new).insert(it.2);
            numbers
        });
        let is_one = numbers.values().all(|of_host| of_host.len() == 1);
        let is_new = numbers.values().flatten().all(|number| self.hosts.insert(*number));
        (!is_one || !is_new).then(|| format!("numbers of addresses are not unique: {actual}"))
    }
}

/// The block of an address, and its number in it.
fn split(address: IpAddr) -> (String, u16) {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            (format!("{a}.{b}"), u16::from_be_bytes([c, d]))
        }
        IpAddr::V6(address) => {
            let segments = address.segments();
            (format!("{:?}", &segments[..7]), segments[7])
        }
    }
}

fn differs(kind: &str, expected: &Value, actual: &Value, pools: &mut Pools) -> Option<String> {
    if actual.is_null() {
        return Some("does not exist".to_owned());
    }
    match kind {
        "ServiceEntry" => pools.differ(&expected["status"]["addresses"], &actual["status"]["addresses"]),
        "Ingress" => unlike("status", &expected["status"], &actual["status"]),
        _ => {
            let mut top = ["data", "spec", "type", "webhooks"].into_iter();
            let of_object = top.find_map(|field| unlike(field, &expected[field], &actual[field]));
            // Of objects of the input, only what differs is recorded.
            let is_created = ["ConfigMap", "WorkloadEntry"].contains(&kind);
            let fields = ["annotations", "labels", "ownerReferences"].into_iter().filter(|_| is_created);
            let of_metadata = |field| unlike(field, &expected["metadata"][field], &actual["metadata"][field]);
            of_object.or_else(|| fields.into_iter().find_map(of_metadata))
        }
    }
}

/// The first difference between a recorded value, with placeholders, and an actual one.
fn unlike(path: &str, expected: &Value, actual: &Value) -> Option<String> {
    let is_equal = match (expected, actual) {
        (Value::String(mark), Value::String(text)) => match mark.as_str() {
            "T" => text.ends_with('Z'),
            "PEM" => text.starts_with("-----BEGIN"),
            "BASE64-PEM" => text.starts_with("LS0tLS1CRUdJTi"),
            "NOT-STORED" => true,
            mark if mark.starts_with("UID-OF-") => text.len() == 36,
            mark => mark == text,
        },
        (Value::Object(expected), Value::Object(actual)) => {
            let names: BTreeSet<&String> = expected.keys().chain(actual.keys()).collect();
            let of =
                |object: &serde_json::Map<String, Value>, name: &str| object.get(name).cloned().unwrap_or_default();
            return names
                .into_iter()
                .find_map(|name| unlike(&format!("{path}.{name}"), &of(expected, name), &of(actual, name)));
        }
        (Value::Array(expected), Value::Array(actual)) if expected.len() == actual.len() => {
            let pairs = expected.iter().zip(actual).enumerate();
            return pairs.into_iter().find_map(|(n, (one, other))| unlike(&format!("{path}[{n}]"), one, other));
        }
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (one, other) => one == other,
    };
    (!is_equal).then(|| format!("{path} is {actual}, istiod writes {expected}"))
}

/// Whether the control plane has changed an object that istiod leaves alone.
fn is_changed(input: &Value, actual: &Value) -> Option<String> {
    if !input["status"].is_null() || !input["webhooks"].is_null() {
        let bundle = actual.pointer("/webhooks/0/clientConfig/caBundle");
        let status = input["status"].is_object().then(|| unlike("status", &input["status"], &actual["status"]));
        return status.flatten().or_else(|| bundle.map(|_| "istiod writes no roots".to_owned()));
    }
    let status = &actual["status"];
    let is_empty = status.is_null() || *status == json!({}) || *status == json!({"loadBalancer": {}});
    (!is_empty).then(|| format!("status is {status}, istiod writes none"))
}

/// Steps after the start of the control plane.
async fn run_steps(case: &Case, cluster: &Cluster, control_plane: &RunningControlPlane) -> Result<Option<AdsStream>> {
    if case.name.starts_with("own/06") {
        let status = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.6"}]}});
        cluster.write_status("v1", "Service", (SYSTEM, "istio-ingressgateway"), status).await?;
    }
    let Some(proxy) = &case.proxy else { return Ok(None) };
    let token = cluster.create_token(("app", "vm"), Some("istio-ca"), None).await?;
    let channel = connect(cluster, control_plane, "app", &ClientTls::default()).await?;
    let identity = Identity::of_node(&proxy["node"])?;
    let mut stream = AdsStream::open_with_token(channel, Protocol::Sotw, identity, &token)?;
    stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new())?;
    stream.next().await?.context("an answer")?;
    if case.name.ends_with("gone") {
        until("the proxy is registered", async || {
            let entry = cluster.get("networking.istio.io/v1", "WorkloadEntry", "app", "vms-10.9.8.7-net-1").await?;
            Ok(entry.is_some())
        })
        .await?;
        return Ok(None);
    }
    Ok(Some(stream))
}

async fn run(family: &str) -> Result<()> {
    let (mut differences, mut compared) = (Vec::new(), 0);
    for case in Case::all(family)? {
        let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
        cluster.install_crds("gateway-api.yaml", ALL).await?;
        case.apply(&cluster).await?;
        let mut variables = vec![("POD_NAME", "istiod-ref-0")];
        variables.extend(case.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let control_plane = RunningControlPlane::start_with(&cluster, cluster.address(), &variables).await?;
        let _stream = run_steps(&case, &cluster, &control_plane).await?;
        tokio::time::sleep(SETTLE_TIME).await;
        let begun = Instant::now();
        let (of_case, count) = loop {
            let (differences, count) = case.compare(&cluster).await?;
            if differences.is_empty() || begun.elapsed() > WRITE_TIMEOUT {
                break (differences, count);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        eprintln!("{}: {} of {count} objects are equal", case.name, count - of_case.len());
        compared += count;
        differences.extend(of_case);
    }
    eprintln!("status {family}: {} of {compared} objects are equal", compared - differences.len());
    differences.iter().for_each(|difference| eprintln!("{difference}"));
    let expected: Vec<&str> =
        DIFFERENCES.iter().map(|(name, _)| *name).filter(|name| name.starts_with(family)).collect();
    let names: Vec<&str> = differences.iter().filter_map(|text| text.split(": ").next()).collect();
    assert_eq!(names, expected, "objects that differ");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn service_entries_have_the_status_that_istiod_writes() -> Result<()> {
    run("serviceentry").await
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_objects_are_those_that_istiod_writes() -> Result<()> {
    run("own").await
}

#[tokio::test(flavor = "multi_thread")]
async fn visibility_of_a_service_entry_is_a_condition_beside_others() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    let visibility = "meshConfig.serviceEntryVisibility.defaultVisibility=NAMESPACE";
    apply_templates(&cluster, &["mesh"], &["--set", visibility]).await?;
    cluster.create_namespace("shop", json!({})).await?;
    let (version, kind, key) = ("networking.istio.io/v1", "ServiceEntry", ("shop", "api"));
    let entry = json!({
        "apiVersion": version, "kind": kind, "metadata": {"name": "api", "namespace": "shop"},
        "spec": {"hosts": ["api.example"], "resolution": "DNS",
                 "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}]},
    });
    cluster.apply(&entry).await?;
    let other = json!({"type": "example.com/Other", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    cluster.write_status(version, kind, key, json!({"conditions": [other]})).await?;
    let variables = [("POD_NAME", "istiod-1"), ("PILOT_ENABLE_AMBIENT", "true")];
    let control_plane = RunningControlPlane::start_with(&cluster, cluster.address(), &variables).await?;
    let conditions = async || -> Result<Vec<Value>> {
        let entry = cluster.get(version, kind, key.0, key.1).await?.unwrap_or_default();
        Ok(entry["status"]["conditions"].as_array().cloned().unwrap_or_default())
    };
    until("the condition is written", async || Ok(conditions().await?.len() == 2)).await?;
    let written = conditions().await?;
    let own = written.iter().find(|it| it["type"] == "istio.io/VisibilityApplied").context("the condition")?;
    assert_eq!((&own["status"], &own["reason"]), (&json!("True"), &json!("Namespace")));
    assert!(own["lastTransitionTime"].is_string() && written.contains(&other), "{written:?}");
    let lease = cluster.get("coordination.k8s.io/v1", "Lease", SYSTEM, "istio-status-leader").await?;
    assert_eq!(lease.unwrap_or_default()["metadata"]["annotations"]["leader.istio.io/holder-key"], "default");
    // Without the setting, it is removed.
    apply_templates(&cluster, &["mesh"], &[]).await?;
    until("the condition is removed", async || Ok(conditions().await? == [other.clone()])).await?;
    assert_eq!(control_plane.warnings()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_of_ambient_mode_are_written_and_removed() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    cluster.install_crds("gateway-api.yaml", ALL).await?;
    apply_templates(&cluster, &["rights", "mesh"], &["--set-string", "env.PILOT_ENABLE_AMBIENT=true"]).await?;
    cluster.create_namespace("shop", json!({})).await?;
    let labels = json!({"istio.io/use-waypoint": "absent"});
    let metadata = |name: &str| json!({"name": name, "namespace": "shop", "labels": labels});
    let (service, entry, policy) = (
        ("v1", "Service"),
        ("networking.istio.io/v1", "WorkloadEntry"),
        ("security.istio.io/v1", "AuthorizationPolicy"),
    );
    let object = |(version, kind): (&str, &str), name: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": metadata(name), "spec": spec});
    cluster.apply(&object(service, "cart", json!({"ports": [{"name": "http", "port": 80}]}))).await?;
    cluster.apply(&object(entry, "vm", json!({"address": "192.0.2.1"}))).await?;
    cluster.apply(&object(policy, "get", json!({"rules": [{"to": [{"operation": {"methods": ["GET"]}}]}]}))).await?;
    let variables = [("POD_NAME", "istiod-1"), ("PILOT_ENABLE_AMBIENT", "true")];
    let control_plane = RunningControlPlane::start_with(&cluster, cluster.address(), &variables).await?;
    let conditions = async |(version, kind): (&str, &str), name: &str| -> Result<Vec<String>> {
        let object = cluster.get(version, kind, "shop", name).await?.unwrap_or_default();
        let list = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let shown = |it: &Value| format!("{} {} {}", it["type"], it["status"], it["reason"]).replace('"', "");
        Ok(list.iter().map(shown).collect())
    };
    let refused = ["istio.io/WaypointBound False WaypointIsNotReady"];
    until("the Service has its condition", async || Ok(conditions(service, "cart").await? == refused)).await?;
    until("the WorkloadEntry has its condition", async || Ok(conditions(entry, "vm").await? == refused)).await?;
    let partly = ["ZtunnelAccepted True UnsupportedValue"];
    until("the policy has its condition", async || Ok(conditions(policy, "get").await? == partly)).await?;
    // The waypoint is ready.
    cluster
        .apply(&json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "absent", "namespace": "shop", "labels": {"istio.io/waypoint-for": "all"}},
            "spec": {"gatewayClassName": "istio-waypoint", "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}]},
        }))
        .await?;
    let addresses = json!({"addresses": [{"type": "IPAddress", "value": "192.0.2.2"}]});
    cluster.write_status("gateway.networking.k8s.io/v1", "Gateway", ("shop", "absent"), addresses).await?;
    let bound = ["istio.io/WaypointBound True WaypointAccepted"];
    until("the Service is bound", async || Ok(conditions(service, "cart").await? == bound)).await?;
    until("the WorkloadEntry is bound", async || Ok(conditions(entry, "vm").await? == bound)).await?;
    // Without the label, the conditions are removed.
    let unlabelled = json!({"metadata": {"labels": {"istio.io/use-waypoint": null}}});
    cluster.patch(service.0, service.1, ("shop", "cart"), &unlabelled).await?;
    cluster.patch(entry.0, entry.1, ("shop", "vm"), &unlabelled).await?;
    until("the conditions are removed", async || {
        Ok(conditions(service, "cart").await?.is_empty() && conditions(entry, "vm").await?.is_empty())
    })
    .await?;
    // The test writes the status of the Gateway at the same time as the control plane.
    let mut warnings = control_plane.warnings()?;
    warnings.retain(|line| !line.contains(r#""kind":"gateways""#));
    assert_eq!(warnings, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_of_policies_for_waypoints_are_written_and_removed_without_ambient_mode() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    apply_templates(&cluster, &["rights", "mesh"], &[]).await?;
    cluster.create_namespace("shop", json!({})).await?;
    let version = "security.istio.io/v1";
    let kinds = ["AuthorizationPolicy", "RequestAuthentication"];
    for kind in kinds {
        cluster
            .apply(&json!({
                "apiVersion": version, "kind": kind, "metadata": {"name": "get", "namespace": "shop"},
                "spec": {"targetRefs": [{"group": "", "kind": "Service", "name": "cart"}]},
            }))
            .await?;
    }
    let variables = [("POD_NAME", "istiod-1")];
    let control_plane = RunningControlPlane::start_with(&cluster, cluster.address(), &variables).await?;
    let conditions = async |kind: &str| -> Result<Vec<Value>> {
        let object = cluster.get(version, kind, "shop", "get").await?.unwrap_or_default();
        Ok(object["status"]["conditions"].as_array().cloned().unwrap_or_default())
    };
    for kind in kinds {
        until("the policy has its condition", async || Ok(!conditions(kind).await?.is_empty())).await?;
        let written = conditions(kind).await?;
        assert_eq!(
            (written.len(), &written[0]["type"], &written[0]["status"], &written[0]["reason"]),
            (1, &json!("WaypointAccepted"), &json!("False"), &json!("AncestorNotBound")),
            "{kind}"
        );
        // Gateways enforce it.
        let door = json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "door"}]);
        cluster.patch(version, kind, ("shop", "get"), &json!({"spec": {"targetRefs": door}})).await?;
        until("the condition is removed", async || Ok(conditions(kind).await?.is_empty())).await?;
    }
    assert_eq!(control_plane.warnings()?, Vec::<String>::new());
    Ok(())
}
