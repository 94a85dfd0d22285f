//! Pod (S05).

use std::collections::BTreeSet;

use serde::Deserialize;
use sluice_model::{Labels, Object, ObjectKey, Pod, Text, label};

use crate::{Findings, Item, metadata::Metadata};

#[derive(Deserialize)]
struct Input {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<Text>,
    service_account_name: Option<Text>,
    host_network: Option<bool>,
    hostname: Option<Text>,
    subdomain: Option<Text>,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    ports: Option<Vec<ContainerPort>>,
    restart_policy: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerPort {
    name: Option<Text>,
    container_port: u16,
    protocol: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: Text,
    #[serde(rename = "podIP")]
    pod_ip: Option<Text>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<PodIp>>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodIp {
    ip: Text,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    condition: Text,
    status: Text,
}

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let mut input: Input = findings.deserialize(item.object)?;
    let key = item.key;
    let labels = input.metadata.take_labels();
    let (workload_kind, workload_name) = workload(key, &input.metadata, &labels);
    let workload_name = labels.get(label::WORKLOAD_NAME).cloned().unwrap_or(workload_name);
    let status = input.status;
    let mut ips: Vec<Text> = status.pod_ip.filter(|ip| !ip.is_empty()).into_iter().collect();
    let mut known: BTreeSet<Text> = ips.iter().cloned().collect();
    let others = status.pod_ips.unwrap_or_default().into_iter().map(|PodIp { ip }| ip);
    ips.extend(others.filter(|ip| !ip.is_empty() && known.insert(ip.clone())));
    let conditions = status.conditions.unwrap_or_default();
    let non_empty = |text: Option<Text>| text.filter(|text| !text.is_empty());
    let mut annotations = input.metadata.take_annotations();
    // The others are dropped, because nothing reads them and there are many pods.
    annotations.retain(|name, _| *name == *label::AMBIENT_REDIRECTION);
    Some(Object::Pod(Pod {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        annotations,
        created: input.metadata.created(findings),
        uid: input.metadata.uid,
        ips,
        node: input.spec.node_name.unwrap_or_default(),
        service_account: non_empty(input.spec.service_account_name).unwrap_or_else(|| "default".into()),
        workload_name,
        workload_kind,
        ports: ports(input.spec.containers, input.spec.init_containers),
        host_network: input.spec.host_network.unwrap_or_default(),
        ready: conditions.iter().any(|c| c.condition == "Ready" && c.status == "True"),
        running: status.phase == "Running",
        finished: status.phase == "Succeeded" || status.phase == "Failed",
        terminating: input.metadata.deletion_timestamp.is_some(),
        hostname: input.spec.hostname.unwrap_or_default(),
        subdomain: input.spec.subdomain.unwrap_or_default(),
        labels,
    }))
}

/// Ports of all containers and of init containers that keep running (sidecar containers).
fn ports(containers: Option<Vec<Container>>, initial: Option<Vec<Container>>) -> Vec<(Text, u16, Text)> {
    let sidecars = initial.unwrap_or_default().into_iter();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    containers
        .unwrap_or_default()
        .into_iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.unwrap_or_default())
        .map(|port| (port.name.unwrap_or_default(), port.container_port, port.protocol.unwrap_or_else(|| "TCP".into())))
        .collect()
}

/// Kind and name of the workload: the controlling owner, or the Deployment or CronJob behind a ReplicaSet or Job.
///
/// A pod whose name was not generated is its own workload.
fn workload(key: &ObjectKey, metadata: &Metadata, labels: &Labels) -> (Text, Text) {
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true));
    let Some(owner) = owner.filter(|_| !metadata.generate_name.is_empty()) else {
        return ("Pod".into(), key.name.clone());
    };
    let without_hash = |label: &str| {
        let hash = labels.get(label).filter(|hash| !hash.is_empty())?;
        let name = owner.name.strip_suffix(hash.as_str())?;
        Some(Text::from(name.strip_suffix('-').unwrap_or(&owner.name)))
    };
    match owner.kind.as_str() {
        "ReplicaSet" => {
            if let Some(name) = without_hash(label::POD_TEMPLATE_HASH) {
                return ("Deployment".into(), name);
            }
            if let Some(name) = without_hash(label::ROLLOUTS_POD_TEMPLATE_HASH) {
                return ("Rollout".into(), name);
            }
        }
        "ReplicationController" => {
            if let Some(name) = labels.get("deploymentconfig").filter(|name| !name.is_empty()) {
                return ("DeploymentConfig".into(), name.clone());
            }
        }
        "Job" => {
            if let Some(name) = cron_job(&owner.name) {
                return ("CronJob".into(), name.into());
            }
        }
        _ => {}
    }
    (owner.kind.clone(), owner.name.clone())
}

/// A CronJob names its Jobs `NAME-MINUTES`, with eight to ten digits.
fn cron_job(job: &str) -> Option<&str> {
    let (name, minutes) = job.rsplit_once('-')?;
    let digits = (8..=10).contains(&minutes.len()) && minutes.bytes().all(|b| b.is_ascii_digit());
    (digits && !name.is_empty()).then_some(name)
}
