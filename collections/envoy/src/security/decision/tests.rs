//! Decisions about requests.

use sluice_model::{
    AuthorizationOperation, AuthorizationPolicy, AuthorizationRule, AuthorizationSource, PolicyAction, PolicyValues,
};

use super::*;
use crate::security::tests::{any, from, policy, settings, to, when};

fn paths(paths: &[&str]) -> AuthorizationRule {
    to(AuthorizationOperation { paths: any(paths), ..AuthorizationOperation::default() })
}

fn principals(principals: &[&str]) -> AuthorizationRule {
    from(AuthorizationSource { principals: any(principals), ..AuthorizationSource::default() })
}

fn get(path: &str) -> PolicyRequest {
    let http = PolicyHttpRequest { method: "GET".to_owned(), path: path.to_owned(), ..PolicyHttpRequest::default() };
    PolicyRequest { http: Some(http), ..PolicyRequest::default() }
}

fn from_account(account: &str, request: PolicyRequest) -> PolicyRequest {
    PolicyRequest { principal: Some(format!("spiffe://td/ns/ns/sa/{account}")), ..request }
}

fn decide_by(policies: &[AuthorizationPolicy], request: &PolicyRequest) -> PolicyDecision {
    let authorization: Vec<&AuthorizationPolicy> = policies.iter().collect();
    let settings = settings();
    let inputs =
        SecurityInputs { settings: &settings, authorization: &authorization, tokens: &[], clear_route_cache: false };
    decide(&inputs, request)
}

/// The effect, and the policy and the rule that decide.
fn effect(policies: &[AuthorizationPolicy], request: &PolicyRequest) -> (PolicyEffect, Option<(usize, usize)>) {
    let decision = decide_by(policies, request);
    let by = decision.decided_by.map(|at| &decision.matched[at]);
    (decision.effect, by.map(|by| (by.policy, by.rule)))
}

#[test]
fn without_policies_everything_is_allowed() {
    assert_eq!(effect(&[], &get("/")), (PolicyEffect::Allowed, None));
    assert_eq!(effect(&[], &PolicyRequest::default()), (PolicyEffect::Allowed, None));
}

#[test]
fn deny_comes_before_allow_and_the_rule_is_named() {
    let policies = [
        policy(PolicyAction::Allow, vec![paths(&["/a*"])]),
        policy(PolicyAction::Deny, vec![paths(&["/x"]), paths(&["/admin"])]),
    ];
    assert_eq!(effect(&policies, &get("/admin?x=1")), (PolicyEffect::Denied, Some((1, 1))));
    assert_eq!(effect(&policies, &get("/a")), (PolicyEffect::Allowed, Some((0, 0))));
    assert_eq!(effect(&policies, &get("/b")), (PolicyEffect::Denied, None), "no ALLOW rule matches");
}

#[test]
fn policy_without_rules_allows_nothing() {
    let policies = [policy(PolicyAction::Allow, Vec::new())];
    assert_eq!(effect(&policies, &get("/")), (PolicyEffect::Denied, None));
}

#[test]
fn all_parts_of_a_rule_have_to_match_and_one_value_of_each() {
    let rule = AuthorizationRule {
        from: vec![AuthorizationSource {
            principals: any(&["td/ns/ns/sa/web", "td/ns/ns/sa/db"]),
            ..Default::default()
        }],
        to: vec![AuthorizationOperation {
            methods: PolicyValues { any: vec!["GET".into()], none: Vec::new() },
            paths: PolicyValues { any: Vec::new(), none: vec!["/secret*".into()] },
            ..Default::default()
        }],
        when: when("request.headers[x-id]", &["7", "8*"]).when,
    };
    let policies = [policy(PolicyAction::Allow, vec![rule])];
    let with_header = |path: &str, value: Option<&str>| {
        let mut request = from_account("db", get(path));
        let http = request.http.as_mut().expect("HTTP");
        http.headers.extend(value.map(|value| ("x-id".to_owned(), value.to_owned())));
        request
    };
    assert_eq!(effect(&policies, &with_header("/", Some("80"))).0, PolicyEffect::Allowed);
    assert_eq!(effect(&policies, &with_header("/", Some("9"))).0, PolicyEffect::Denied);
    assert_eq!(effect(&policies, &with_header("/", None)).0, PolicyEffect::Denied);
    assert_eq!(effect(&policies, &with_header("/secrets", Some("7"))).0, PolicyEffect::Denied);
    let other =
        PolicyRequest { principal: Some("spiffe://td/ns/ns/sa/other".to_owned()), ..with_header("/", Some("7")) };
    assert_eq!(effect(&policies, &other).0, PolicyEffect::Denied);
}

#[test]
fn client_without_mutual_tls_has_no_principal_and_no_namespace() {
    let namespace = from(AuthorizationSource { namespaces: any(&["ns"]), ..AuthorizationSource::default() });
    let policies = [policy(PolicyAction::Allow, vec![principals(&["*"]), namespace])];
    assert_eq!(effect(&policies, &get("/")), (PolicyEffect::Denied, None));
    assert_eq!(effect(&policies, &from_account("web", get("/"))), (PolicyEffect::Allowed, Some((0, 0))));
    let elsewhere = from(AuthorizationSource {
        namespaces: PolicyValues { any: Vec::new(), none: vec!["ns".into()] },
        ..AuthorizationSource::default()
    });
    let deny = [policy(PolicyAction::Deny, vec![elsewhere])];
    assert_eq!(effect(&deny, &get("/")).0, PolicyEffect::Denied, "notNamespaces matches a client without an identity");
    assert_eq!(effect(&deny, &from_account("web", get("/"))).0, PolicyEffect::Allowed);
}

#[test]
fn what_is_not_stated_makes_a_decision_open_only_if_it_matters() {
    let blocks = from(AuthorizationSource { ip_blocks: any(&["10.0.0.0/8"]), ..AuthorizationSource::default() });
    let policies = [policy(PolicyAction::Deny, vec![blocks])];
    let open = decide_by(&policies, &get("/"));
    assert_eq!(
        (open.effect, open.depends_on.iter().copied().collect::<Vec<_>>()),
        (PolicyEffect::Undecided, vec!["source IP"])
    );
    let at = |address: &str| PolicyRequest { source_ip: address.parse().ok(), ..get("/") };
    assert_eq!(effect(&policies, &at("10.1.2.3")), (PolicyEffect::Denied, Some((0, 0))));
    assert_eq!(effect(&policies, &at("192.0.2.1")), (PolicyEffect::Allowed, None));
    let certain = [policies[0].clone(), policy(PolicyAction::Deny, vec![paths(&["/"])])];
    assert_eq!(effect(&certain, &get("/")), (PolicyEffect::Denied, Some((1, 0))), "another policy denies it anyway");
    let allow = [policy(PolicyAction::Allow, policies[0].rules.clone())];
    assert_eq!(decide_by(&allow, &get("/")).effect, PolicyEffect::Undecided);
}

#[test]
fn external_authorizer_decides_unless_a_policy_denies() {
    let custom = policy(PolicyAction::Custom, vec![paths(&["/a*"])]);
    let decision = decide_by(std::slice::from_ref(&custom), &get("/a"));
    assert_eq!((decision.effect, decision.providers), (PolicyEffect::Provider, vec!["warden".into()]));
    assert_eq!(effect(std::slice::from_ref(&custom), &get("/b")), (PolicyEffect::Allowed, None));
    let with_deny = [custom.clone(), policy(PolicyAction::Deny, vec![paths(&["/a"])])];
    assert_eq!(effect(&with_deny, &get("/a")), (PolicyEffect::Denied, Some((1, 0))));
    let lost = AuthorizationPolicy { provider: "lost".into(), ..custom };
    assert_eq!(effect(&[lost], &get("/a")), (PolicyEffect::Denied, Some((0, 0))), "its service does not exist");
}

#[test]
fn audit_and_dry_run_policies_are_listed_and_decide_nothing() {
    let dry = AuthorizationPolicy { dry_run: true, ..policy(PolicyAction::Deny, vec![paths(&["/"])]) };
    let policies = [dry, policy(PolicyAction::Audit, vec![paths(&["/"])])];
    let decision = decide_by(&policies, &get("/"));
    assert_eq!((decision.effect, decision.matched.len()), (PolicyEffect::Allowed, 2));
    let steps: Vec<_> = decision.matched.iter().map(|rule| (rule.step, rule.dry_run)).collect();
    assert_eq!(steps, [(PolicyStep::Audit, false), (PolicyStep::Deny, true)]);
    let dry_allow = AuthorizationPolicy { dry_run: true, ..policy(PolicyAction::Allow, vec![paths(&["/x"])]) };
    assert_eq!(effect(&[dry_allow], &get("/")), (PolicyEffect::Allowed, None));
}

#[test]
fn http_attributes_of_a_tcp_connection_never_permit_more() {
    let tcp = from_account("web", PolicyRequest { port: Some(5432), ..PolicyRequest::default() });
    let allow = [policy(PolicyAction::Allow, vec![paths(&["/a"])])];
    assert_eq!(effect(&allow, &tcp), (PolicyEffect::Denied, None), "the rule cannot match");
    let deny = [policy(PolicyAction::Deny, vec![paths(&["/a"])])];
    assert_eq!(effect(&deny, &tcp), (PolicyEffect::Denied, Some((0, 0))), "any connection may match the rule");
}

#[test]
fn action_that_cannot_be_read_denies_what_matches_and_allows_nothing() {
    let policies = [policy(PolicyAction::Unreadable, vec![paths(&["/a"])])];
    assert_eq!(effect(&policies, &get("/a")), (PolicyEffect::Denied, Some((0, 0))));
    assert_eq!(effect(&policies, &get("/b")), (PolicyEffect::Denied, None));
}

#[test]
fn claims_ports_hosts_and_path_templates_are_matched() {
    let claims = [policy(PolicyAction::Allow, vec![when("request.auth.claims[realm][roles]", &["admin"])])];
    let with_claim = |values: &[&str]| {
        let path = vec!["realm".to_owned(), "roles".to_owned()];
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        PolicyRequest { claims: [(path, values)].into(), ..get("/") }
    };
    assert_eq!(effect(&claims, &with_claim(&["user", "admin"])).0, PolicyEffect::Allowed);
    assert_eq!(effect(&claims, &with_claim(&["admin"])).0, PolicyEffect::Allowed);
    assert_eq!(effect(&claims, &get("/")).0, PolicyEffect::Denied);

    let operation = AuthorizationOperation {
        hosts: any(&["Shop.example"]),
        ports: any(&["8080"]),
        paths: any(&["/v1/{*}/items/{**}"]),
        ..AuthorizationOperation::default()
    };
    let policies = [policy(PolicyAction::Allow, vec![to(operation)])];
    let request = |host: &str, port: u16, path: &str| {
        let mut request = PolicyRequest { port: Some(port), ..get(path) };
        request.http.as_mut().expect("HTTP").host = Some(host.to_owned());
        request
    };
    assert_eq!(effect(&policies, &request("shop.EXAMPLE", 8080, "/v1/a/items/b/c")).0, PolicyEffect::Allowed);
    for (host, port, path) in [
        ("other", 8080, "/v1/a/items/b"),
        ("shop.example", 80, "/v1/a/items/b"),
        ("shop.example", 8080, "/v1/a/b/items/c"),
        ("shop.example", 8080, "/v1//items/c"),
    ] {
        assert_eq!(effect(&policies, &request(host, port, path)).0, PolicyEffect::Denied, "{host} {port} {path}");
    }
    let open = decide_by(&policies, &get("/v1/a/items/b"));
    assert_eq!(open.depends_on.into_iter().collect::<Vec<_>>(), ["host", "port"]);
}
