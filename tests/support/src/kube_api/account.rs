//! The rights of the account of a test: all that a test may need, without what it forbids.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::{Request, header};
use serde_json::{Value, json};
use sluice_parse::KINDS;

use crate::cluster::Cluster;

/// Time in which a change of rights takes effect.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Resources beside those of the kinds that the control plane reads, by group.
const OTHER_RESOURCES: [(&str, &[&str]); 6] = [
    ("admissionregistration.k8s.io", &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]),
    ("apiextensions.k8s.io", &["customresourcedefinitions"]),
    ("authentication.k8s.io", &["tokenreviews"]),
    ("authorization.k8s.io", &["subjectaccessreviews"]),
    (
        "certificates.k8s.io",
        &[
            "certificatesigningrequests",
            "certificatesigningrequests/approval",
            "certificatesigningrequests/status",
            "clustertrustbundles",
            "signers",
        ],
    ),
    ("coordination.k8s.io", &["leases"]),
];

/// The resources of the account, by group.
fn resources() -> BTreeMap<&'static str, Vec<String>> {
    let mut resources: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for info in KINDS {
        resources.entry(info.group).or_default().extend([info.plural.to_owned(), format!("{}/status", info.plural)]);
    }
    for (group, others) in OTHER_RESOURCES {
        resources.entry(group).or_default().extend(others.iter().map(|name| (*name).to_owned()));
    }
    resources
}

/// The rules of a role with all verbs on all resources but the forbidden ones.
pub(super) fn rules(forbidden: &BTreeSet<String>) -> Value {
    let rules = resources().into_iter().map(|(group, mut names)| {
        names.retain(|name| !forbidden.contains(name));
        json!({"apiGroups": [group], "resources": names, "verbs": ["*"]})
    });
    rules.collect()
}

/// Waits until a user may list a resource, or may not.
pub(super) async fn until_permitted(cluster: &Cluster, user: &str, resource: &str, expect: bool) -> Result<()> {
    let group = resources().into_iter().find(|(_, names)| names.iter().any(|name| name == resource));
    let (group, _) = group.with_context(|| format!("the account has no right on {resource}"))?;
    let attributes = json!({"verb": "list", "group": group, "resource": resource});
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": ["system:serviceaccounts"], "resourceAttributes": attributes},
    });
    let deadline = Instant::now() + EFFECT_TIMEOUT;
    loop {
        let request = Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews")
            .header(header::CONTENT_TYPE, "application/json")
            .body(review.to_string().into_bytes())?;
        let answer: Value = cluster.client().request(request).await?;
        if (answer["status"]["allowed"] == true) == expect {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{user} may list {resource}, or may not, after {EFFECT_TIMEOUT:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
