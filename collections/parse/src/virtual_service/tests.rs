use serde_json::json;
use sluice_model::Decimal;

use super::*;

fn parse(spec: Value) -> (Option<VirtualService>, Vec<String>) {
    let meta = ObjectMeta { namespace: "shop".into(), name: "reviews".into(), ..ObjectMeta::default() };
    let findings = Findings::default();
    let parsed = parse_virtual_service(&meta, &spec, "cluster.local", &findings);
    (parsed, findings.into_vec().iter().map(|f| f.field_path.to_string()).collect())
}

#[test]
fn names_are_resolved_and_defaults_are_set() {
    let (vs, findings) = parse(json!({
        "hosts": ["reviews", "Example.COM"],
        "http": [{
            "match": [{"uri": {"prefix": "/a"}, "headers": {"x": {}, "y": null, "z": {"exact": "1"}}, "gateways": ["front", "mesh"]}],
            "route": [{"destination": {"host": "reviews", "subset": "v1", "port": {"number": 80}}, "weight": 5}],
            "timeout": "1500ms",
            "mirror": {"host": "copy.other"},
            "mirrorPercentage": {"value": 0.5},
            "fault": {"abort": {"grpcStatus": "UNAVAILABLE", "percentage": {"value": 10}}},
        }],
    }));
    // Admission refuses a header match without a condition. Where it is stored, it matches the presence of the header.
    assert_eq!(findings, ["spec.http[0].match[0].headers[y]"]);
    let vs = vs.unwrap();
    assert_eq!(vs.hosts, [Host::from("reviews.shop.svc.cluster.local"), Host::from("example.com")]);
    assert_eq!(vs.gateways, [Text::from("mesh")]);
    let route = &vs.http[0];
    assert_eq!(route.matches[0].gateways, [Text::from("shop/front"), Text::from("mesh")]);
    assert_eq!(route.matches[0].uri, Some(StringMatch::Prefix("/a".into())));
    assert_eq!(route.matches[0].headers.values().filter(|value| value.is_none()).count(), 2);
    assert_eq!(route.route[0].destination.host.as_str(), "reviews.shop.svc.cluster.local");
    assert_eq!(route.route[0].destination.port, Some(80));
    assert_eq!(route.timeout, Some(Duration::from_millis(1500)));
    assert_eq!(route.mirror.as_ref().unwrap().host.as_str(), "copy.other");
    assert_eq!(route.mirror_percentage, Some(Decimal::from_f64(0.5)));
    assert_eq!(route.fault.as_ref().unwrap().abort.as_ref().unwrap().status, Some(AbortStatus::Grpc(14)));
}

#[test]
fn invalid_fields_are_reported_with_their_path() {
    let check = |spec: Value, expect: &str| {
        let (vs, findings) = parse(spec);
        assert_eq!(findings, [expect]);
        assert_eq!(vs, None);
    };
    let to = |host: &str| json!([{"destination": {"host": host}}]);
    let http = |route: Value| json!({"hosts": ["a"], "http": [route]});
    check(json!({"hosts": ["a"]}), "spec");
    check(json!({"hosts": ["a", "a"], "http": [{"route": to("a")}]}), "spec.hosts[1]");
    check(json!({"hosts": ["*"], "http": [{"route": to("a")}]}), "spec.hosts[0]");
    check(json!({"hosts": ["a"], "gateways": ["a/b/c"], "http": [{"route": to("a")}]}), "spec.gateways[0]");
    check(http(json!({})), "spec.http[0]");
    check(http(json!({"route": to("a"), "redirect": {"uri": "/"}})), "spec.http[0].route");
    check(http(json!({"route": to("")})), "spec.http[0].route[0].destination.host");
    check(http(json!({"route": to("a"), "match": [{"uri": {"regex": "("}}]})), "spec.http[0].match[0].uri");
    check(http(json!({"route": to("a"), "timeout": "fast"})), "spec.http[0].timeout");
    check(
        http(json!({"route": to("a"), "retries": {"attempts": 1, "retryOn": "sometimes"}})),
        "spec.http[0].retries.retryOn",
    );
    check(
        http(json!({"route": to("a"), "fault": {"abort": {"httpStatus": 500, "percentage": {"value": 101}}}})),
        "spec.http[0].fault.abort.percentage",
    );
    check(
        http(json!({"route": to("a"), "mirror": {"host": "b"}, "mirrors": [{"destination": {"host": "c"}}]})),
        "spec.http[0].mirrors",
    );
    let weights = |a: i32, b: i32| {
        http(
            json!({"route": [{"destination": {"host": "a"}, "weight": a}, {"destination": {"host": "b"}, "weight": b}]}),
        )
    };
    check(weights(0, 0), "spec.http[0].route");
    check(weights(-1, 2), "spec.http[0].route[0].weight");
}

#[test]
fn unknown_field_is_a_warning() {
    let (vs, findings) =
        parse(json!({"hosts": ["a"], "http": [{"route": [{"destination": {"host": "a"}}], "colour": 1}]}));
    assert!(vs.is_some());
    assert_eq!(findings, ["spec.http[0].colour"]);
}
