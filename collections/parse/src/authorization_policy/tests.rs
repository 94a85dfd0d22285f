use serde_json::{Value, json};
use sluice_model::{AuthorizationPolicy, AuthorizationRule, Object, ParsedObject, PolicyAction};

use crate::parse_object;

fn parsed(annotations: &Value, spec: &Value) -> ParsedObject {
    let object = json!({
        "apiVersion": "security.istio.io/v1",
        "kind": "AuthorizationPolicy",
        "metadata": {"namespace": "orchard", "name": "p", "annotations": annotations},
        "spec": spec,
    });
    parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("known kind")
}

fn parse(spec: &Value) -> (AuthorizationPolicy, Vec<String>) {
    let parsed = parsed(&json!({}), spec);
    let Some(Object::AuthorizationPolicy(policy)) = parsed.object else { panic!("it counts all the same: {spec}") };
    let errors = parsed.rejects.into_iter().filter(|reject| reject.severity.is_refusal());
    (*policy, errors.map(|reject| reject.field_path.to_string()).collect())
}

#[test]
fn every_field_is_read() {
    let (policy, errors) = parse(&json!({
        "selector": {"matchLabels": {"app": "safe"}},
        "action": "DENY",
        "rules": [{
            "from": [{"source": {"principals": ["a"], "notRequestPrincipals": ["i/s"], "trustDomains": ["td*"],
                "ipBlocks": ["10.0.0.0/8"], "notRemoteIpBlocks": ["::1"]}}],
            "to": [{"operation": {"hosts": ["*.x"], "notPorts": ["80"], "methods": ["GET"], "paths": ["/a/{*}/{**}"]}}],
            "when": [{"key": "request.headers[x]", "values": ["1"], "notValues": ["2"]}],
        }],
    }));
    assert_eq!(errors, Vec::<String>::new());
    let rule = &policy.rules[0];
    assert_eq!(rule.from[0].request_principals.none, ["i/s"]);
    assert_eq!(rule.to[0].ports.none, ["80"]);
    assert_eq!(rule.when[0].values.any, ["1"]);
    assert_eq!(policy.action, PolicyAction::Deny);
    assert_eq!(policy.attachment.selector.len(), 1);
}

#[test]
fn invalid_fields_are_reported_with_their_path() {
    let from = |source: Value| json!({"rules": [{"from": [{"source": source}]}]});
    let to = |operation: Value| json!({"rules": [{"to": [{"operation": operation}]}]});
    let when = |condition: Value| json!({"rules": [{"when": [condition]}]});
    let accounts: Vec<String> = (0..17).map(|n| format!("a{n}")).collect();
    for (spec, path) in [
        (from(json!({})), "rules[0].from[0].source"),
        (from(json!({"ipBlocks": ["10.0.0.0/40"]})), "rules[0].from[0].source.ipBlocks[0]"),
        (from(json!({"principals": ["a", ""]})), "rules[0].from[0].source.principals[1]"),
        (from(json!({"serviceAccounts": ["a/b/c"]})), "rules[0].from[0].source.serviceAccounts[0]"),
        (from(json!({"serviceAccounts": ["a"], "namespaces": ["b"]})), "rules[0].from[0].source.serviceAccounts"),
        (from(json!({"notServiceAccounts": accounts})), "rules[0].from[0].source.notServiceAccounts"),
        (from(json!({"trustDomains": ["a*b"]})), "rules[0].from[0].source.trustDomains[0]"),
        (from(json!({"trustDomains": ["a/b"]})), "rules[0].from[0].source.trustDomains[0]"),
        (json!({"rules": [{"from": [{}]}]}), "rules[0].from[0].source"),
        (json!({"rules": [{"to": [{}]}]}), "rules[0].to[0].operation"),
        (to(json!({})), "rules[0].to[0].operation"),
        (to(json!({"ports": ["99999"]})), "rules[0].to[0].operation.ports[0]"),
        (to(json!({"paths": ["/{**}/{*}"]})), "rules[0].to[0].operation.paths[0]"),
        (to(json!({"notPaths": ["/a{b}"]})), "rules[0].to[0].operation.notPaths[0]"),
        (when(json!({"key": "", "values": ["a"]})), "rules[0].when[0].key"),
        (when(json!({"key": "request.headers", "values": ["a"]})), "rules[0].when[0].key"),
        (when(json!({"key": "request.scheme", "values": ["a"]})), "rules[0].when[0].key"),
        (when(json!({"key": "source.ip"})), "rules[0].when[0].values"),
        (when(json!({"key": "source.ip", "notValues": ["x"]})), "rules[0].when[0].notValues[0]"),
        (json!({"action": "DENY"}), "rules"),
        (json!({"action": "CUSTOM", "rules": [{}]}), "provider.name"),
        (json!({"provider": {"name": "x"}, "rules": [{}]}), "provider"),
        (json!({"targetRef": {"kind": "Pod", "name": "p"}}), "targetRef.kind"),
        (json!({"selector": {"matchLabels": {"a": "b*"}}}), "selector.matchLabels[a]"),
    ] {
        let (_, errors) = parse(&spec);
        assert_eq!(errors, [format!("spec.{path}")], "{spec}");
    }
    let (_, errors) = parse(&json!({"action": "CUSTOM", "provider": {"name": "x"},
        "rules": [{"from": [{"source": {"principals": ["a"]}}], "when": [{"key": "request.auth.principal", "values": ["b"]}]}]}));
    assert_eq!(errors, ["spec.rules[0].from[0].source.principals", "spec.rules[0].when[0].key"]);
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g"});
    let (policy, errors) = parse(&json!({"selector": {}, "targetRefs": [target]}));
    assert_eq!((errors, policy.attachment.targets.len()), (vec!["spec".to_owned()], 1));
}

#[test]
fn unreadable_part_does_not_allow_more() {
    let spec = |action: &str| json!({"action": action, "rules": [{"to": [{"operation": {"ports": [80], "methods": ["GET"]}}]}]});
    assert_eq!(parse(&spec("ALLOW")).0.rules, []);
    assert_eq!(parse(&spec("DENY")).0.rules.len(), 1);
    for action in [json!("SHRUG"), json!(7), json!(["DENY"])] {
        let (policy, _) = parse(&json!({"action": action, "rules": [{"to": [{"operation": {"methods": ["GET"]}}]}]}));
        assert_eq!((policy.action, policy.rules.len()), (PolicyAction::Unreadable, 1), "{action}");
    }
    let (policy, _) = parse(&json!("no object"));
    assert_eq!((policy.action, policy.rules), (PolicyAction::Unreadable, vec![AuthorizationRule::default()]));
}

#[test]
fn unreadable_part_of_a_deny_rule_matches_everything() {
    let rule = |rules: Value| parse(&json!({"action": "DENY", "rules": rules})).0.rules;
    let anything = AuthorizationRule::default();
    for rules in [
        json!(5),
        json!([5]),
        json!([{"to": 5}]),
        json!([{"to": [5]}]),
        json!([{"to": [5, {"operation": {"methods": ["GET"]}}]}]),
        json!([{"from": [{"source": 5}, {"source": {"namespaces": ["a"]}}]}]),
        json!([{"when": [5]}]),
        json!([{"when": [{"key": 5, "values": ["a"]}]}]),
        json!([{"when": [{"key": "request.scheme", "values": ["https"]}]}]),
        json!([{"when": [{"key": "source.namespace", "values": ["a", 5]}]}]),
    ] {
        assert_eq!(rule(rules.clone()), std::slice::from_ref(&anything), "{rules}");
    }
    let partly = rule(json!([{"to": [{"operation": {"methods": ["GET", 5], "ports": ["80"]}}]}]));
    assert_eq!(partly[0].to[0].methods.any, [""; 0]);
    assert_eq!(partly[0].to[0].ports.any, ["80"]);
    let others = rule(json!([{"to": [{"operation": {"methods": ["GET"]}}]}, 5]));
    assert_eq!(others.len(), 2, "the readable rule and one for the other");
    assert_eq!(others[1], anything);
}

#[test]
fn allow_rule_with_an_unknown_field_allows_nothing() {
    let rules = |rule: Value| parse(&json!({"rules": [rule]})).0.rules.len();
    assert_eq!(rules(json!({"to": [{"operation": {"methods": ["GET"], "grpcMethods": ["x"]}}]})), 0);
    assert_eq!(rules(json!({"from": [{"source": {"principals": ["a"]}, "sources": []}]})), 0);
    assert_eq!(rules(json!({"unless": [{}]})), 0);
    assert_eq!(rules(json!({"when": [{"key": "source.namespace", "values": ["a"], "value": "b"}]})), 0);
    assert_eq!(rules(json!({})), 1);
}

#[test]
fn allow_policy_with_an_unreadable_target_allows_nothing() {
    for target in [json!({"selector": {"matchLabels": {"app": 1}}}), json!({"targetRef": 5}), json!({"targetRefs": {}})]
    {
        let mut spec = target.clone();
        spec["rules"] = json!([{}]);
        let (policy, _) = parse(&spec);
        assert_eq!(policy.rules, [], "{target}");
        spec["action"] = json!("DENY");
        assert_eq!(parse(&spec).0.rules.len(), 1, "{target}");
    }
}

#[test]
fn dry_run_requires_action_allow_or_deny() {
    let dry = |action: &str, value: &str| {
        let provider = if action == "CUSTOM" { json!({"name": "x"}) } else { Value::Null };
        let spec = json!({"action": action, "rules": [{}], "provider": provider});
        let parsed = parsed(&json!({"istio.io/dry-run": value}), &spec);
        let Some(Object::AuthorizationPolicy(policy)) = parsed.object else { panic!("a policy") };
        (policy.dry_run, parsed.rejects.len())
    };
    assert_eq!(dry("ALLOW", "true"), (true, 0));
    assert_eq!(dry("DENY", "F"), (false, 0));
    assert_eq!(dry("DENY", "maybe"), (false, 1));
    assert_eq!(dry("CUSTOM", "true"), (true, 1));
}

#[test]
fn deny_rule_with_only_http_attributes_is_a_warning() {
    let warnings = |rule: Value| parsed(&json!({}), &json!({"action": "DENY", "rules": [rule]})).rejects.len();
    assert_eq!(warnings(json!({"to": [{"operation": {"paths": ["/a"]}}]})), 1);
    assert_eq!(warnings(json!({"from": [{"source": {"requestPrincipals": ["*"]}}]})), 1);
    assert_eq!(warnings(json!({"to": [{"operation": {"paths": ["/a"], "ports": ["80"]}}]})), 0);
    assert_eq!(warnings(json!({"from": [{"source": {"principals": ["*"]}}]})), 0);
    assert_eq!(warnings(json!({})), 0);
}
