//! Reads and writes the WorkloadEntries of workloads.

use std::time::SystemTime;

use http::{Method, Request, header};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Map, Value, json};
use sluice_kube::{ObjectPath, RequestError};
use sluice_model::Proxy;

use super::workload::{EntryState, HealthReport, Presence};
use super::{EntryKey, RegistrationMetrics, RegistrationOptions, identity};

/// Annotation with the WorkloadGroup of an entry that a proxy has registered.
pub(super) const GROUP: &str = "istio.io/autoRegistrationGroup";
/// Annotation with the replica that the proxy is, or was last, connected to.
pub(super) const CONTROLLER: &str = "istio.io/workloadController";
/// Annotation with the time since which the proxy is connected.
pub(super) const CONNECTED_AT: &str = "istio.io/connectedAt";
/// Annotation with the time at which the last stream of the proxy ended.
pub(super) const DISCONNECTED_AT: &str = "istio.io/disconnectedAt";
/// Annotation of an entry that is used only while its workload is healthy.
const HEALTH_CHECKED: &str = "proxy.istio.io/health-checks-enabled";
/// The condition of an entry with the health of its workload.
const HEALTHY: &str = "Healthy";
/// Label of a node with its locality. It is not valid as a label of an object.
const LOCALITY_LABEL: &str = "istio-locality";
const TUNNEL_LABEL: &str = "networking.istio.io/tunnel";
const API_VERSION: &str = "networking.istio.io/v1";
/// The path of entries.
pub(super) const ENTRIES: ObjectPath = ObjectPath::new("/apis/networking.istio.io/v1", "workloadentries");
const GROUPS: ObjectPath = ObjectPath::new("/apis/networking.istio.io/v1", "workloadgroups");

/// Why an entry is not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum EntryError {
    /// The proxy may not have it, or it cannot exist. The streams of the proxy end.
    #[error("{0}")]
    Refused(String),
    /// It was changed meanwhile. It is read again.
    #[error("another writer has changed it")]
    Conflict,
    /// The API server does not accept the request now.
    #[error("{0}")]
    Request(#[from] RequestError),
}

impl EntryError {
    pub(super) fn is_permanent(&self) -> bool {
        matches!(self, Self::Refused(_))
    }

    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict)
    }
}

/// Reads and writes entries.
#[derive(Clone)]
pub(super) struct EntryApi {
    client: Client,
    pub(super) options: RegistrationOptions,
    metrics: RegistrationMetrics,
}

impl EntryApi {
    pub(super) fn new(client: Client, options: RegistrationOptions, metrics: RegistrationMetrics) -> Self {
        Self { client, options, metrics }
    }

    /// Brings an entry to the wanted state. Returns whether it was written.
    pub(super) async fn reconcile(&self, key: &EntryKey, wanted: &EntryState) -> Result<bool, EntryError> {
        let entry = self.get(ENTRIES, key).await?;
        match &wanted.presence {
            Presence::Connected { since } => {
                let (entry, written) = self.connect(key, entry, wanted, *since).await?;
                let reported = match &wanted.health {
                    Some(health) => self.report(key, entry, health).await?,
                    None => false,
                };
                Ok(written || reported)
            }
            Presence::Disconnected { at, connected_at } => {
                let Some(mut entry) = entry else { return Ok(false) };
                if !disconnect(&mut entry, &self.options.controller, *at, *connected_at) {
                    return Ok(false);
                }
                self.put(key, "", &entry).await?;
                if wanted.registers {
                    self.metrics.disconnected.inc();
                }
                Ok(true)
            }
        }
    }

    /// Marks an entry as connected, or creates it. Returns the stored entry.
    async fn connect(
        &self,
        key: &EntryKey,
        entry: Option<Value>,
        wanted: &EntryState,
        since: SystemTime,
    ) -> Result<(Value, bool), EntryError> {
        let (namespace, name) = key;
        let proxy = &wanted.proxy;
        if let Some(mut entry) = entry {
            if !wanted.registers && annotation(&entry, HEALTH_CHECKED).is_none() {
                return Ok((entry, false));
            }
            self.check(proxy, &entry)?;
            if !connect(&mut entry, &self.options.controller, since) {
                return Ok((entry, false));
            }
            let written = self.put(key, "", &entry).await?;
            if wanted.registers {
                self.metrics.connected.inc();
            }
            return Ok((written, true));
        }
        if !wanted.registers {
            return Err(EntryError::Refused(format!("there is no WorkloadEntry {namespace}/{name}")));
        }
        let group = identity::group(proxy).unwrap_or_default();
        let group_key = (namespace.clone(), group.as_str().into());
        let Some(group) = self.get(GROUPS, &group_key).await? else {
            self.metrics.errors.inc();
            return Err(EntryError::Refused(format!("there is no WorkloadGroup {namespace}/{group}")));
        };
        let mut entry = from_group(name, proxy, &group);
        self.check(proxy, &entry)?;
        connect(&mut entry, &self.options.controller, since);
        let created = self.send(Method::POST, ENTRIES.all(namespace), Some(&entry)).await?;
        self.metrics.created.inc();
        Ok((created, true))
    }

    fn check(&self, proxy: &Proxy, entry: &Value) -> Result<(), EntryError> {
        if !self.options.checks_identity {
            return Ok(());
        }
        let account = entry["spec"]["serviceAccount"].as_str().unwrap_or_default();
        identity::check(proxy, account).map_err(EntryError::Refused)
    }

    /// Writes the health of a workload, if this replica is the one that it is connected to.
    async fn report(&self, key: &EntryKey, mut entry: Value, health: &HealthReport) -> Result<bool, EntryError> {
        if annotation(&entry, CONTROLLER) != Some(self.options.controller.as_str()) || !set_health(&mut entry, health) {
            return Ok(false);
        }
        self.put(key, "status", &entry).await?;
        Ok(true)
    }

    /// Removes the health of a workload that has gone.
    pub(super) async fn forget_health(&self, key: &EntryKey, mut entry: Value) -> Result<bool, EntryError> {
        let Some(conditions) = entry.pointer_mut("/status/conditions").and_then(Value::as_array_mut) else {
            return Ok(false);
        };
        let before = conditions.len();
        conditions.retain(|condition| condition["type"] != HEALTHY);
        if conditions.len() == before {
            return Ok(false);
        }
        self.put(key, "status", &entry).await?;
        Ok(true)
    }

    /// Deletes an entry that is still as it was read.
    pub(super) async fn delete(&self, key: &EntryKey, entry: &Value) -> Result<(), EntryError> {
        let metadata = &entry["metadata"];
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        });
        self.send(Method::DELETE, ENTRIES.of(&key.0, &key.1, ""), Some(&options)).await?;
        self.metrics.deleted.inc();
        Ok(())
    }

    pub(super) async fn get(&self, objects: ObjectPath, key: &EntryKey) -> Result<Option<Value>, EntryError> {
        let request = Request::get(objects.of(&key.0, &key.1, "")).body(Vec::new()).map_err(kube::Error::HttpError);
        match sluice_kube::request(&self.client, request.map_err(RequestError::from)?).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(RequestError::from(error).into()),
        }
    }

    async fn put(&self, key: &EntryKey, subresource: &str, entry: &Value) -> Result<Value, EntryError> {
        self.send(Method::PUT, ENTRIES.of(&key.0, &key.1, subresource), Some(entry)).await
    }

    async fn send(&self, method: Method, uri: String, body: Option<&Value>) -> Result<Value, EntryError> {
        let request = Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default());
        let request = request.map_err(kube::Error::HttpError).map_err(RequestError::from)?;
        match sluice_kube::request(&self.client, request).await {
            Ok(object) => Ok(object),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Err(EntryError::Conflict),
            Err(error) => {
                self.metrics.errors.inc();
                Err(match error {
                    kube::Error::Api(status) if matches!(status.code, 400 | 422) => EntryError::Refused(status.message),
                    error => RequestError::from(error).into(),
                })
            }
        }
    }
}

pub(super) fn annotation<'a>(entry: &'a Value, name: &str) -> Option<&'a str> {
    entry["metadata"]["annotations"][name].as_str()
}

fn time(entry: &Value, name: &str) -> Option<Timestamp> {
    annotation(entry, name)?.parse().ok()
}

fn timestamp(at: SystemTime) -> Timestamp {
    Timestamp::try_from(at).unwrap_or_default()
}

/// Marks an entry as connected to a replica since a time. Returns whether this changes it: a later stream, of this or another
/// replica, has precedence.
fn connect(entry: &mut Value, controller: &str, since: SystemTime) -> bool {
    let since = timestamp(since);
    let is_later = |name: &str, entry: &Value| time(entry, name).is_some_and(|at| at > since);
    if is_later(DISCONNECTED_AT, entry) || is_later(CONNECTED_AT, entry) {
        return false;
    }
    if annotation(entry, CONTROLLER) == Some(controller) && time(entry, CONNECTED_AT).is_some_and(|at| at >= since) {
        return false;
    }
    let annotations = &mut entry["metadata"]["annotations"];
    annotations[CONTROLLER] = controller.into();
    annotations[CONNECTED_AT] = since.to_string().into();
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove(DISCONNECTED_AT);
    }
    true
}

/// Marks an entry as disconnected from a replica. Returns whether this changes it: the proxy may have connected again.
fn disconnect(entry: &mut Value, controller: &str, at: SystemTime, connected_at: SystemTime) -> bool {
    if annotation(entry, CONTROLLER) != Some(controller) {
        return false;
    }
    match time(entry, CONNECTED_AT) {
        Some(connected) if connected > timestamp(connected_at) => return false,
        None if annotation(entry, DISCONNECTED_AT).is_some() => return false,
        _ => {}
    }
    if let Some(annotations) = entry.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(CONNECTED_AT);
        annotations.insert(DISCONNECTED_AT.to_owned(), timestamp(at).to_string().into());
    }
    true
}

/// Sets the health of the workload of an entry. Returns whether this changes it: a later report has precedence.
fn set_health(entry: &mut Value, health: &HealthReport) -> bool {
    let at = timestamp(health.at);
    let text = at.to_string();
    let mut condition = json!({"type": HEALTHY, "status": "True", "lastProbeTime": text, "lastTransitionTime": text});
    if let Err(reason) = &health.result {
        condition["status"] = "False".into();
        condition["message"] = reason.as_str().into();
    }
    if !entry["status"].is_object() {
        entry["status"] = json!({});
    }
    if !entry["status"]["conditions"].is_array() {
        entry["status"]["conditions"] = json!([]);
    }
    let Some(conditions) = entry["status"]["conditions"].as_array_mut() else { return false };
    let Some(current) = conditions.iter_mut().find(|condition| condition["type"] == HEALTHY) else {
        conditions.push(condition);
        return true;
    };
    let probed = current["lastProbeTime"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    if probed.is_some_and(|probed| probed > at) {
        return false;
    }
    *current = condition;
    true
}

/// The entry of a proxy by the template of its group. The proxy's own labels, network and locality replace those of the group.
fn from_group(name: &str, proxy: &Proxy, group: &Value) -> Value {
    let object = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let mut spec = object(&group["spec"]["template"]);
    let mut labels = object(&spec.remove("labels").unwrap_or_default());
    labels.extend(object(&group["spec"]["metadata"]["labels"]));
    let own = proxy.labels.iter().filter(|(name, _)| **name != *LOCALITY_LABEL);
    labels.extend(own.map(|(name, value)| (name.to_string(), value.as_str().into())));
    if identity::accepts_hbone(proxy) {
        labels.entry(TUNNEL_LABEL).or_insert_with(|| "http".into());
    }
    spec.insert("address".to_owned(), proxy.ips.first().map_or("", |ip| ip.as_str()).into());
    if !proxy.network.is_empty() {
        spec.insert("network".to_owned(), proxy.network.as_str().into());
    }
    let locality = [&proxy.locality.region, &proxy.locality.zone, &proxy.locality.subzone];
    let locality: Vec<&str> = locality.into_iter().map(|it| it.as_str()).take_while(|it| !it.is_empty()).collect();
    if !locality.is_empty() {
        spec.insert("locality".to_owned(), locality.join("/").into());
    }
    let mut annotations = Map::new();
    annotations.insert(GROUP.to_owned(), group["metadata"]["name"].clone());
    annotations.extend(object(&group["spec"]["metadata"]["annotations"]));
    if proxy.health_checked {
        annotations.insert(HEALTH_CHECKED.to_owned(), "true".into());
    }
    let mut metadata = json!({
        "namespace": proxy.namespace.as_str(), "name": name, "annotations": annotations,
        "ownerReferences": [{
            "apiVersion": API_VERSION, "kind": "WorkloadGroup", "controller": true,
            "name": group["metadata"]["name"], "uid": group["metadata"]["uid"],
        }],
    });
    if !labels.is_empty() {
        metadata["labels"] = labels.clone().into();
        spec.insert("labels".to_owned(), labels.into());
    }
    json!({"apiVersion": API_VERSION, "kind": "WorkloadEntry", "metadata": metadata, "spec": spec, "status": {}})
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[tokio::test]
    async fn identity_is_checked_unless_that_is_disabled() {
        let accepted = |checks_identity| {
            let config = kube::Config::new("http://127.0.0.1:1".parse().expect("a URL"));
            let client = sluice_kube::client(config).expect("a client");
            let options = RegistrationOptions {
                controller: "one".into(),
                registers: true,
                reports_health: true,
                checks_identity,
            };
            let api = EntryApi::new(client, options, RegistrationMetrics::default());
            let entry = json!({"spec": {"serviceAccount": "vm"}});
            api.check(&Proxy { namespace: "app".into(), ..Proxy::default() }, &entry).is_ok()
        };
        assert!(!accepted(true) && accepted(false), "the proxy is not authenticated");
    }

    #[test]
    fn later_stream_has_precedence() {
        let mut entry = json!({"metadata": {"annotations": {"note": "n"}}});
        assert!(connect(&mut entry, "one", at(100)));
        assert!(!connect(&mut entry, "one", at(100)), "it says so already");
        assert!(connect(&mut entry, "two", at(200)), "the proxy has connected to another replica");
        assert!(!connect(&mut entry, "one", at(150)));
        assert!(!disconnect(&mut entry, "one", at(210), at(100)), "this is the end of an earlier stream");
        assert!(!disconnect(&mut entry, "two", at(210), at(190)), "of the same replica");
        assert!(disconnect(&mut entry, "two", at(300), at(200)));
        let annotations = json!({
            "note": "n", "istio.io/workloadController": "two", "istio.io/disconnectedAt": "1970-01-01T00:05:00Z",
        });
        assert_eq!(entry["metadata"]["annotations"], annotations);
        assert!(!disconnect(&mut entry, "two", at(400), at(200)), "it says so already");
        assert!(!connect(&mut entry, "one", at(250)), "this stream has ended since");
        assert!(connect(&mut entry, "one", at(350)));
        assert_eq!(annotation(&entry, DISCONNECTED_AT), None);
    }

    #[test]
    fn health_replaces_only_its_own_condition() {
        let mut entry = json!({"status": {"conditions": [{"type": "Other", "status": "True"}]}});
        let health =
            |result: Result<(), &str>, seconds| HealthReport { result: result.map_err(str::to_owned), at: at(seconds) };
        assert!(set_health(&mut entry, &health(Err("refused"), 100)));
        assert!(!set_health(&mut entry, &health(Ok(()), 99)), "it is older");
        let time = "1970-01-01T00:01:40Z";
        let failed = json!({
            "type": "Healthy", "status": "False", "message": "refused", "lastProbeTime": time, "lastTransitionTime": time,
        });
        assert_eq!(entry["status"]["conditions"], json!([{"type": "Other", "status": "True"}, failed]));
        assert!(set_health(&mut entry, &health(Ok(()), 200)));
        assert_eq!(entry["status"]["conditions"][1]["status"], "True");
        assert_eq!(entry["status"]["conditions"][1]["message"], Value::Null);
        let mut other = json!({"status": {"conditions": "x"}});
        assert!(set_health(&mut other, &health(Ok(()), 1)));
    }
}
