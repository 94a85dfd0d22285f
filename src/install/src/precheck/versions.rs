//! Versions of the Gateway API, and changes between versions of Istio.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::{PrecheckFinding, Severity};
use crate::cluster::TargetCluster;
use crate::error::InstallError;
use crate::object::{KubeObject, ObjectKey};

const GATEWAY_API: &str = "gateway.networking.k8s.io";
/// Version that these kinds have to have now, and the version that they will have to have.
const BETA: (&str, [&str; 4]) = ("v1beta1", ["Gateway", "GatewayClass", "HTTPRoute", "ReferenceGrant"]);
const STABLE: (&str, [&str; 4]) = ("v1", ["Gateway", "GatewayClass", "HTTPRoute", "GRPCRoute"]);

/// The last minor version of Istio in which traces went to `zipkin.istio-system` by default.
const LAST_DEFAULT_ZIPKIN: u32 = 21;

/// The version of Istio before an upgrade: its minor version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FromVersion(u32);

impl FromStr for FromVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let minor = text.strip_prefix("1.").and_then(|minor| minor.parse().ok());
        minor.map(Self).ok_or_else(|| format!("{text:?} is not a version of Istio such as 1.30"))
    }
}

/// CRDs of the Gateway API whose versions are too old.
pub(super) async fn gateway_api(cluster: &TargetCluster) -> Result<Vec<PrecheckFinding>, InstallError> {
    let definitions = cluster.list(("apiextensions.k8s.io/v1", "CustomResourceDefinition"), "").await?;
    Ok(definitions.iter().flat_map(old_versions).collect())
}

fn old_versions(definition: &KubeObject) -> Vec<PrecheckFinding> {
    let spec = &definition.json()["spec"];
    if spec["group"] != GATEWAY_API {
        return Vec::new();
    }
    let served = spec["versions"].as_array().into_iter().flatten().filter(|version| version["served"] == true);
    let served: BTreeSet<&str> = served.filter_map(|version| version["name"].as_str()).collect();
    let kind = spec["names"]["kind"].as_str().unwrap_or_default();
    let lacks = |(version, kinds): (&str, [&str; 4])| kinds.contains(&kind) && !served.contains(version);
    let served = match served.is_empty() {
        true => "no version".to_owned(),
        false => served.iter().copied().collect::<Vec<_>>().join(", "),
    };
    let mut findings = Vec::new();
    if lacks(BETA) {
        let reason = format!("the cluster serves {served}, and {} is required; upgrade the Gateway API", BETA.0);
        findings.push(PrecheckFinding::error(definition.key(), reason).with_code("IST0156"));
    }
    if lacks(STABLE) {
        let reason = format!("the cluster serves {served}, and later versions require {}", STABLE.0);
        findings.push(PrecheckFinding::new(Severity::Warning, definition.key(), reason).with_code("IST0172"));
    }
    findings
}

/// Changes after a version of Istio that concern the cluster.
pub(super) async fn changes_since(
    from: FromVersion,
    cluster: &TargetCluster,
) -> Result<Vec<PrecheckFinding>, InstallError> {
    let mut findings = Vec::new();
    let zipkin = ObjectKey {
        api_version: "v1".to_owned(),
        kind: "Service".to_owned(),
        namespace: "istio-system".to_owned(),
        name: "zipkin".to_owned(),
    };
    if from.0 <= LAST_DEFAULT_ZIPKIN && cluster.get(&zipkin).await?.is_some() {
        let reason = "Istio sent traces to this Service by default up to version 1.21; now a Telemetry object or the mesh config has to name it";
        findings.push(PrecheckFinding::new(Severity::Warning, zipkin, reason).with_code("IST0169"));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn codes(group: &str, kind: &str, versions: &Json) -> Vec<&'static str> {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("a.{group}")},
            "spec": {"group": group, "names": {"kind": kind}, "versions": versions},
        });
        let definition = KubeObject::new(definition).expect("an object");
        old_versions(&definition).into_iter().filter_map(|finding| finding.code).collect()
    }

    #[test]
    fn old_versions_of_the_gateway_api_are_findings() {
        let version = |name: &str, served: bool| json!({"name": name, "served": served});
        let alpha = json!([version("v1alpha2", true), version("v1beta1", false)]);
        assert_eq!(codes(GATEWAY_API, "Gateway", &alpha), ["IST0156", "IST0172"]);
        assert_eq!(codes(GATEWAY_API, "ReferenceGrant", &alpha), ["IST0156"]);
        assert_eq!(codes(GATEWAY_API, "GRPCRoute", &alpha), ["IST0172"]);
        assert_eq!(codes(GATEWAY_API, "Gateway", &json!([version("v1beta1", true)])), ["IST0172"]);
        let both = json!([version("v1", true), version("v1beta1", true)]);
        assert_eq!(codes(GATEWAY_API, "Gateway", &both), [""; 0]);
        assert_eq!(codes(GATEWAY_API, "TCPRoute", &alpha), [""; 0]);
        assert_eq!(codes("example.com", "Gateway", &alpha), [""; 0]);
    }

    #[test]
    fn version_before_an_upgrade_is_read() {
        assert_eq!("1.21".parse(), Ok(FromVersion(21)));
        for invalid in ["2.0", "1", "1.x", "1.21.3"] {
            assert!(invalid.parse::<FromVersion>().is_err(), "{invalid}");
        }
    }
}
