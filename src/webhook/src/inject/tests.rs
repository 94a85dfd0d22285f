use std::collections::BTreeMap;

use allocation_counter::measure;
use serde_json::json;
use sluice_inject::{Admission, AdmissionReview, ClusterView, InjectContext, Injector, InjectorSettings};

use crate::decision::{DecisionMemory, EXPRESSION_BYTES};

struct NoClusters;

impl ClusterView for NoClusters {
    fn has_native_sidecars(&self, _cluster: &str, _node: Option<&str>) -> bool {
        false
    }

    fn namespace_annotations(&self, _cluster: &str, _namespace: &str) -> Option<BTreeMap<String, String>> {
        None
    }
}

#[test]
fn injections_take_at_most_the_memory_that_is_reserved_for_them() {
    let template = "spec: {containers: [{name: istio-proxy, image: a}]}";
    let config = json!({"policy": "enabled", "templates": {"sidecar": template}}).to_string();
    let injector = Injector::new(&config, "global: {}", &[], InjectorSettings::default()).expect("an injector");
    let context = InjectContext { path: "/inject", proxy_configs: &[], clusters: &NoClusters };
    let check = |field: &str, value: &str| {
        let fields = match field {
            "spec" => format!(r#""metadata":{{"name":"a"}},"spec":{{"containers":[{{"name":"b"}}],"x":{value}}}"#),
            field => format!(r#""metadata":{{"name":"a","{field}":{value}}},"spec":{{"containers":[{{"name":"b"}}]}}"#),
        };
        let body = format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","namespace":"n",
            "object":{{{fields}}}}}}}"#
        );
        let peak = measure(|| {
            let review = AdmissionReview::parse(body.as_bytes()).expect("a review");
            let admission = injector.inject(&review, &context);
            assert!(matches!(admission, Admission::Patched(_)), "{admission:?}");
            drop(review.respond(&admission).to_string());
        });
        let (peak, most) =
            (peak.bytes_max, (DecisionMemory::INJECTION.most(body.as_bytes()) - EXPRESSION_BYTES) as u64);
        (peak > most).then(|| format!("{field}: {} bytes take {peak}, and not {most}: {}", body.len(), &value[..20]))
    };
    // Static tables are built before anything is measured.
    check("spec", r#"["the first injection"]"#);
    let mut excesses = Vec::new();
    for element in ["{}", r#"{"":0}"#, r#"{"":{"":{"":{}}}}"#, "0", "[]", r#""""#] {
        let elements = vec![element; (200 << 10) / (element.len() + 1)].join(",");
        excesses.extend(check("spec", &format!("[{elements}]")));
    }
    let texts: Vec<String> = (0..5_000).map(|n| format!(r#""{n}":"{n}""#)).collect();
    for field in ["spec", "labels", "annotations"] {
        excesses.extend(check(field, &format!("{{{}}}", texts.join(","))));
        excesses.extend(check(field, &format!(r#"{{"a.example/b":"{}"}}"#, "\\u0001".repeat(40_000))));
    }
    assert!(excesses.is_empty(), "{excesses:#?}");
}
