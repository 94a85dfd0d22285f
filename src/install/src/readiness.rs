//! When the objects of an installation are ready.

use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::cluster::TargetCluster;
use crate::error::InstallError;
use crate::object::{KubeObject, ObjectKey};

/// Time between two reads of the objects.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// What an object waits for. `None` if it is ready.
///
/// # Errors
/// It will not become ready; the reason.
pub(crate) fn waits_for(object: &KubeObject) -> Result<Option<String>, String> {
    let json = object.json();
    match object.key().kind.as_str() {
        "Deployment" => deployment(json),
        "DaemonSet" => Ok(daemon_set(json)),
        "CustomResourceDefinition" => {
            Ok((condition(json, "Established")["status"] != "True").then(|| "its kind is not served yet".to_owned()))
        }
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => Ok(webhooks(json)),
        _ => Ok(None),
    }
}

fn condition<'j>(json: &'j Json, name: &str) -> &'j Json {
    static NONE: Json = Json::Null;
    let conditions = json["status"]["conditions"].as_array();
    conditions.into_iter().flatten().find(|condition| condition["type"] == name).unwrap_or(&NONE)
}

fn number(value: &Json) -> i64 {
    value.as_i64().unwrap_or_default()
}

fn deployment(json: &Json) -> Result<Option<String>, String> {
    let (status, wanted) = (&json["status"], json["spec"]["replicas"].as_i64().unwrap_or(1));
    if number(&status["observedGeneration"]) < number(&json["metadata"]["generation"]) {
        return Ok(Some("its change is not observed yet".to_owned()));
    }
    let progressing = condition(json, "Progressing");
    if progressing["reason"] == "ProgressDeadlineExceeded" {
        return Err(progressing["message"].as_str().unwrap_or("its deadline for progress is exceeded").to_owned());
    }
    let [updated, available, all] =
        ["updatedReplicas", "availableReplicas", "replicas"].map(|field| number(&status[field]));
    Ok(if updated < wanted {
        Some(format!("{updated} of {wanted} replicas are updated"))
    } else if all > updated {
        Some(format!("{} old replicas are not gone yet", all - updated))
    } else if available < updated {
        Some(format!("{available} of {updated} replicas are available"))
    } else {
        None
    })
}

fn daemon_set(json: &Json) -> Option<String> {
    let status = &json["status"];
    let wanted = number(&status["desiredNumberScheduled"]);
    let ready = number(&status["updatedNumberScheduled"]).min(number(&status["numberAvailable"]));
    let is_observed = number(&status["observedGeneration"]) >= number(&json["metadata"]["generation"]);
    (!is_observed || ready < wanted).then(|| format!("{ready} of {wanted} pods are available"))
}

/// The control plane writes the roots of its certificates into webhooks that lead to its Service.
fn webhooks(json: &Json) -> Option<String> {
    let mut webhooks = json["webhooks"].as_array().into_iter().flatten();
    let is_empty = |value: &Json| value.as_str().is_none_or(str::is_empty);
    webhooks
        .any(|webhook| is_empty(&webhook["clientConfig"]["caBundle"]) && is_empty(&webhook["clientConfig"]["url"]))
        .then(|| "the control plane has not written the root certificates yet".to_owned())
}

/// Waits until objects are ready. `report` receives what is waited for, each time that it changes.
///
/// # Errors
/// An object is not ready at the deadline, does not exist, or will not become ready.
pub(crate) async fn wait(
    keys: &[ObjectKey],
    cluster: &TargetCluster,
    timeout: Duration,
    report: &mut dyn FnMut(&str),
) -> Result<(), InstallError> {
    let deadline = Instant::now() + timeout;
    let mut reported = String::new();
    loop {
        let waiting = unready(keys, cluster).await?;
        if waiting.is_empty() {
            return Ok(());
        }
        let waiting = waiting.join("; ");
        if Instant::now() >= deadline {
            return Err(InstallError::NotReady { seconds: timeout.as_secs(), waiting });
        }
        if waiting != reported {
            report(&format!("waiting: {waiting}"));
            reported = waiting;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The objects that are not ready, with what they wait for.
///
/// # Errors
/// One will not become ready.
pub(crate) async fn unready(keys: &[ObjectKey], cluster: &TargetCluster) -> Result<Vec<String>, InstallError> {
    let mut waiting = Vec::new();
    for key in keys {
        let reason = match cluster.get(key).await? {
            None => Some("it does not exist".to_owned()),
            Some(object) => waits_for(&object).map_err(|reason| InstallError::refused(key, reason))?,
        };
        waiting.extend(reason.map(|reason| format!("{key}: {reason}")));
    }
    Ok(waiting)
}

/// Waits until objects are gone.
///
/// # Errors
/// One exists at the deadline.
pub(crate) async fn wait_until_gone(
    keys: &[ObjectKey],
    cluster: &TargetCluster,
    timeout: Duration,
) -> Result<(), InstallError> {
    let deadline = Instant::now() + timeout;
    for key in keys {
        while cluster.get(key).await?.is_some() {
            if Instant::now() >= deadline {
                let waiting = format!("{key}: it is not gone yet");
                return Err(InstallError::NotReady { seconds: timeout.as_secs(), waiting });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn waiting(kind: &str, mut json: Json) -> Result<Option<String>, String> {
        json["apiVersion"] = "v1".into();
        json["kind"] = kind.into();
        json["metadata"]["name"] = "a".into();
        waits_for(&KubeObject::new(json).expect("an object"))
    }

    #[test]
    fn deployment_is_ready_once_all_replicas_are_updated_and_available() {
        let status = |updated: i64, available: i64, all: i64| {
            json!({"metadata": {"generation": 2}, "spec": {"replicas": 2}, "status": {
                "observedGeneration": 2, "updatedReplicas": updated, "availableReplicas": available, "replicas": all}})
        };
        let text = |json: Json| waiting("Deployment", json).expect("no failure").unwrap_or_default();
        assert_eq!(text(status(1, 1, 2)), "1 of 2 replicas are updated");
        assert_eq!(text(status(2, 2, 3)), "1 old replicas are not gone yet");
        assert_eq!(text(status(2, 1, 2)), "1 of 2 replicas are available");
        assert_eq!(text(status(2, 2, 2)), "");
        assert_eq!(text(json!({"metadata": {"generation": 1}})), "its change is not observed yet");
        let failed = json!({"status": {"conditions": [
            {"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "timed out"}]}});
        assert_eq!(waiting("Deployment", failed), Err("timed out".to_owned()));
    }

    #[test]
    fn webhooks_are_ready_once_they_have_roots() {
        let with =
            |config: Json| waiting("MutatingWebhookConfiguration", json!({"webhooks": [{"clientConfig": config}]}));
        assert!(with(json!({"service": {}})).expect("no failure").is_some());
        assert_eq!(with(json!({"service": {}, "caBundle": "cm9vdA=="})), Ok(None));
        assert_eq!(with(json!({"url": "https://a.example"})), Ok(None));
        assert_eq!(waiting("Service", json!({})), Ok(None));
    }
}
