use allocation_counter::measure;
use serde_json::{Value as Json, json};

use sluice_inject::AdmissionReview;

use super::{Judgement, Reason, judge, review};
use crate::WebhookMetrics;
use crate::decision::{DecisionMemory, EXPRESSION_BYTES};

fn request(object: &Json) -> Json {
    json!({
        "uid": "u-1", "operation": "CREATE", "namespace": "harbor", "name": "a", "object": object,
        "resource": {"group": "networking.istio.io", "version": "v1", "resource": "gateways"},
    })
}

fn review_of(request: &Json) -> AdmissionReview {
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    AdmissionReview::from_json(review).expect("a review")
}

fn judged(request: &Json) -> Judgement {
    judge(&review_of(request))
}

fn gateway(change: impl FnOnce(&mut Json)) -> Json {
    let mut object = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
        "metadata": {"namespace": "harbor", "name": "front"},
        "spec": {"servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]},
    });
    change(&mut object);
    object
}

fn refusal(request: &Json) -> (Reason, String) {
    match judged(request) {
        Judgement::Refused { reason, message } => (reason, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn objects_are_judged_by_the_rules_of_their_kind() {
    assert_eq!(judged(&request(&gateway(|_| {}))), Judgement::Valid { warnings: Vec::new() });
    let (reason, message) = refusal(&request(&gateway(|it| it["spec"]["servers"][0]["hosts"] = json!([]))));
    assert_eq!(reason, Reason::Invalid);
    assert!(message.starts_with("configuration is invalid: spec.servers[0].hosts"), "{message}");
    let (_, message) = refusal(&request(&gateway(|it| it["spec"]["servers"][0] = json!({}))));
    assert!(
        message.starts_with("configuration is invalid: ") && message.contains(" errors occurred:\n\t* "),
        "{message}"
    );
    let (reason, message) = refusal(&request(&gateway(|it| it["extra"] = json!(1))));
    assert_eq!(
        (reason, message.as_str()),
        (Reason::Invalid, "unknown field \"extra\" on Gateway resource harbor/front")
    );
    let warned = judged(&request(&gateway(|it| it["spec"]["severs"] = json!([]))));
    assert!(matches!(&warned, Judgement::Valid { warnings } if warnings.len() == 1), "{warned:?}");
}

#[test]
fn objects_of_other_kinds_are_refused() {
    for (api_version, kind) in
        [("networking.istio.io/v1", "Harbor"), ("networking.istio.io/v7", "Gateway"), ("v1", "Pod")]
    {
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}});
        assert_eq!(
            refusal(&request(&object)),
            (Reason::UnknownType, format!("unrecognized type {api_version}/{kind}"))
        );
    }
    for object in [json!(null), json!([]), json!("text")] {
        assert_eq!(refusal(&request(&object)).0, Reason::Decode);
    }
    assert_eq!(refusal(&request(&gateway(|it| it["metadata"] = json!({})))).0, Reason::Conversion);
}

#[test]
fn deletions_are_not_judged() {
    for operation in ["DELETE", "CONNECT", ""] {
        let mut request = request(&json!(null));
        request["operation"] = json!(operation);
        assert_eq!(judged(&request), Judgement::NotJudged);
    }
}

#[test]
fn annotated_object_is_always_refused_and_a_dry_run_is_not_counted() {
    let annotations = json!({"internal.istio.io/webhook-always-reject": "true"});
    let mut request = request(&gateway(|it| it["metadata"]["annotations"] = annotations));
    let expected = "configuration is invalid: \"internal.istio.io/webhook-always-reject\" annotation found, rejecting";
    assert_eq!(refusal(&request), (Reason::Invalid, expected.to_owned()));
    let metrics = WebhookMetrics::default();
    let failed = || {
        let labels = super::FailedLabels {
            group: "networking.istio.io",
            version: "v1",
            resource: "gateways",
            reason: "invalid_resource",
        };
        metrics.validation_failed.get_or_create(&labels).get()
    };
    for (dry_run, expected) in [(true, 0), (false, 1)] {
        request["dryRun"] = json!(dry_run);
        let body = json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": request});
        let answer = review(body.to_string().as_bytes(), &metrics).expect("a review");
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1beta1");
        assert_eq!((&answer["response"]["allowed"], &answer["response"]["uid"]), (&json!(false), &json!("u-1")));
        assert_eq!(failed(), expected);
    }
}

#[test]
fn labels_of_unknown_kinds_are_bounded() {
    let labels =
        super::resource_labels(&review_of(&json!({"resource": {"group": "g", "version": "v", "resource": "r"}})));
    assert_eq!((labels.group, labels.version, labels.resource), ("other", "other", "other"));
}

#[test]
fn bodies_that_are_no_reviews_are_errors() {
    let metrics = WebhookMetrics::default();
    for body in ["{", "[]", "{}", r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#] {
        assert!(review(body.as_bytes(), &metrics).is_err(), "{body}");
    }
}

#[test]
fn reviews_take_at_most_the_memory_that_is_reserved_for_them() {
    let metrics = WebhookMetrics::default();
    let check = |kind: &str, spec: String| {
        let body = format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","operation":"CREATE",
            "object":{{"apiVersion":"networking.istio.io/v1","kind":"{kind}","metadata":{{"name":"a","namespace":"n"}},
            "spec":{spec}}}}}}}"#
        );
        let peak = measure(|| drop(review(body.as_bytes(), &metrics).expect("a review"))).bytes_max;
        let most = (DecisionMemory::VALIDATION.most(body.as_bytes()) - EXPRESSION_BYTES) as u64;
        (peak > most).then(|| format!("{kind}: {} bytes take {peak}, and not {most}: {}", body.len(), &spec[..40]))
    };
    // Static tables are built before anything is measured.
    check(
        "VirtualService",
        r#"{"hosts":["a.example"],"http":[{"name":"a"}],"tcp":[],"tls":[{"match":[{}]}]}"#.to_owned(),
    );
    let mut excesses = Vec::new();
    for (kind, list) in [("VirtualService", "http"), ("DestinationRule", "subsets"), ("Sidecar", "ingress")] {
        for element in ["{}", r#"{"":0}"#, r#"{"name":""}"#, r#"{"match":[{}]}"#, "0", "[]", r#""""#] {
            // The lists of the smaller one fit into the memory that those of an object may take.
            for bytes in [200 << 10, 2 << 20] {
                let elements = vec![element; bytes / (element.len() + 1)].join(",");
                excesses.extend(check(kind, format!(r#"{{"host":"a","hosts":["a"],"{list}":[{elements}]}}"#)));
            }
        }
        let members: Vec<String> = (0..100_000).map(|n| format!(r#""{n}":0"#)).collect();
        excesses.extend(check(kind, format!("{{{}}}", members.join(","))));
        excesses.extend(check(kind, format!(r#"{{"host":"{}"}}"#, "x".repeat(2 << 20))));
    }
    assert!(excesses.is_empty(), "{excesses:#?}");
}
