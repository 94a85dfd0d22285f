//! The ValidatingAdmissionPolicies of the chart, which the API server itself applies.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_testkit::cluster::Cluster;

use crate::fixture::{SYSTEM, apply_templates, render_templates, start_with_crds, until};

const STABLE: &[&str] = &["--set", "profile=stable"];
const POLICY: &str = "ValidatingAdmissionPolicy";

fn object(group: &str, version: &str, kind: &str, spec: &Value) -> Value {
    let metadata = json!({"namespace": SYSTEM, "name": kind.to_lowercase()});
    json!({"apiVersion": format!("{group}.istio.io/{version}"), "kind": kind, "metadata": metadata, "spec": spec})
}

/// An object, and the message with which a policy refuses it. `None` if it is admitted.
fn cases() -> Vec<(Value, Option<&'static str>)> {
    let telemetry = |spec: &Value| object("telemetry", "v1", "Telemetry", spec);
    let policy = |source: &Value| {
        object("security", "v1", "AuthorizationPolicy", &json!({"rules": [{}, {"from": [{"source": source}]}]}))
    };
    let proxy_config = json!({"concurrency": 2});
    vec![
        (
            object("networking", "v1alpha3", "EnvoyFilter", &json!({"priority": 1})),
            Some("EnvoyFilter is not in the stable channel"),
        ),
        (
            object("networking", "v1beta1", "ProxyConfig", &proxy_config),
            Some("ProxyConfig is not in the stable channel"),
        ),
        (
            object("extensions", "v1alpha1", "WasmPlugin", &json!({"url": "file:///filter.wasm"})),
            Some("WasmPlugin is not in the stable channel"),
        ),
        (
            telemetry(&json!({"tracing": [{"disableSpanReporting": true}, {"useRequestIdForTraceSampling": false}]})),
            Some("spec.tracing.useRequestIdForTraceSampling is not in the stable channel"),
        ),
        (
            telemetry(&json!({"metrics": [{"reportingInterval": "5s"}]})),
            Some("spec.metrics.reportingInterval is not in the stable channel"),
        ),
        (
            telemetry(&json!({"accessLogging": [{"filter": {"expression": "true"}}]})),
            Some("spec.accessLogging.filter is not in the stable channel"),
        ),
        (
            policy(&json!({"trustDomains": ["td"]})),
            Some("trustDomains and notTrustDomains are not in the stable channel"),
        ),
        (policy(&json!({"notTrustDomains": ["td"]})), Some("notTrustDomains are not in the stable channel")),
        (
            telemetry(&json!({"tracing": [{"randomSamplingPercentage": 5.0}], "accessLogging": [{"disabled": true}]})),
            None,
        ),
        (telemetry(&json!({"metrics": [{"providers": [{"name": "prometheus"}]}]})), None),
        (policy(&json!({"namespaces": ["shop"]})), None),
        (object("security", "v1", "AuthorizationPolicy", &json!({"action": "DENY"})), None),
        (object("networking", "v1", "DestinationRule", &json!({"host": "cart"})), None),
    ]
}

async fn refusal(cluster: &Cluster, object: &Value) -> Option<String> {
    cluster.apply(object).await.err().map(|error| format!("{error:#}"))
}

/// Waits until the API server, which reads policies after they are written, applies them.
async fn until_refused(cluster: &Cluster, object: &Value) -> Result<()> {
    until("the policies are applied", async || {
        Ok(refusal(cluster, object).await.is_some_and(|refusal| refusal.contains("stable-channel")))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_outside_of_the_stable_channel_are_refused() -> Result<()> {
    let Some(cluster) = start_with_crds(&[""]).await? else { return Ok(()) };
    let filter = object("networking", "v1alpha3", "EnvoyFilter", &json!({"priority": 1}));
    apply_templates(&cluster, &["stable-policy"], STABLE).await?;
    until_refused(&cluster, &filter).await?;
    for (object, expect) in cases() {
        let refused = refusal(&cluster, &object).await;
        match expect {
            Some(expect) => {
                let refused = refused.with_context(|| format!("{object} is admitted"))?;
                assert!(refused.contains(expect), "{object}: {refused}");
                assert!(refused.contains("stable-channel-default-policy.istio.io"), "{refused}");
            }
            None => assert_eq!(refused, None, "{object}"),
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_of_a_revision_concerns_objects_with_its_label() -> Result<()> {
    let Some(cluster) = start_with_crds(&["envoyfilters"]).await? else { return Ok(()) };
    let values = [STABLE, &["--set", "revision=next"]].concat();
    let rendered = render_templates(&cluster.helm(), &["stable-policy"], &values)?;
    assert_eq!(rendered.matches(&format!("kind: {POLICY}\n")).count(), 1, "{rendered}");
    cluster.apply_yaml(&rendered).await?;
    let mut filter = object("networking", "v1alpha3", "EnvoyFilter", &json!({"priority": 1}));
    filter["metadata"]["labels"] = json!({"istio.io/rev": "next"});
    until_refused(&cluster, &filter).await?;
    filter["metadata"]["labels"] = json!({"istio.io/rev": "other"});
    filter["metadata"]["name"] = "of-another-revision".into();
    assert_eq!(refusal(&cluster, &filter).await, None);
    // A change of an object is checked as well.
    filter["metadata"]["labels"] = json!({"istio.io/rev": "next"});
    let refused = refusal(&cluster, &filter).await.context("the change is refused")?;
    assert!(refused.contains("EnvoyFilter is not in the stable channel"), "{refused}");
    Ok(())
}
