//! The workload that a pod belongs to, as its owner and labels tell.

use serde_json::Value as Json;

use crate::pod::meta_text;

/// Numbers of digits of the time that a CronJob adds to the names of its Jobs.
const CRON_JOB_DIGITS: std::ops::RangeInclusive<usize> = 8..=10;

/// Name and type of a workload.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct WorkloadMeta {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) api_version: String,
}

/// The workload of a pod.
pub(crate) fn workload_of(pod: &Json) -> WorkloadMeta {
    let metadata = &pod["metadata"];
    let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
    let pod_meta = WorkloadMeta { name: text(&metadata["name"]), kind: "Pod".to_owned(), api_version: "v1".to_owned() };
    if metadata["generateName"].as_str().is_none_or(str::is_empty) {
        return pod_meta;
    }
    let mut owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    let Some(owner) = owners.find(|owner| owner["controller"].as_bool() == Some(true)) else { return pod_meta };
    let mut meta = WorkloadMeta {
        name: text(&owner["name"]),
        kind: text(&owner["kind"]),
        api_version: text(&owner["apiVersion"]),
    };
    let without_hash = |label: &str| {
        let hash = meta_text(pod, "labels", label).filter(|hash| !hash.is_empty())?;
        let name = meta.name.strip_suffix(hash)?;
        Some(name.strip_suffix('-').map_or_else(|| meta.name.clone(), str::to_owned))
    };
    match meta.kind.as_str() {
        "ReplicaSet" => {
            if let Some(name) = without_hash("pod-template-hash") {
                meta.name = name;
                meta.kind = "Deployment".to_owned();
            } else if let Some(name) = without_hash("rollouts-pod-template-hash") {
                meta = WorkloadMeta { name, kind: "Rollout".to_owned(), api_version: "v1alpha1".to_owned() };
            }
        }
        "ReplicationController" => {
            if let Some(name) = meta_text(pod, "labels", "deploymentconfig").filter(|name| !name.is_empty()) {
                meta.name = name.to_owned();
                meta.kind = "DeploymentConfig".to_owned();
            }
        }
        "Job" => {
            let scheduled = meta.name.rsplit_once('-').filter(|(name, time)| {
                !name.is_empty()
                    && CRON_JOB_DIGITS.contains(&time.len())
                    && time.bytes().all(|byte| byte.is_ascii_digit())
            });
            if let Some((name, _)) = scheduled {
                let name = name.to_owned();
                meta = WorkloadMeta { name, kind: "CronJob".to_owned(), api_version: "batch/v1".to_owned() };
            }
        }
        _ => {}
    }
    if meta.name.is_empty() {
        meta.name = pod_meta.name;
    }
    meta
}
