//! Filters of security policies.

use std::collections::BTreeMap;
use std::sync::Arc;

use envoy_types::pb::envoy::config::listener::v3::filter;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_filter;
use envoy_types::pb::google::protobuf::Any;
use serde_json::{Value, json};
use sluice_model::{
    AuthorizationCondition, AuthorizationOperation, AuthorizationPolicy, AuthorizationRule, AuthorizationSource,
    ExtAuthz, ExtensionProvider, JwtRule, MeshConfig, PolicyAction, PolicyValues, ProviderKind, ProviderService, Text,
};

use super::{KeySource, PolicyFilters, SecurityInputs, build_grpc_policies, build_policies};
use crate::listener_settings::{Collector, ListenerSettings};

pub(super) fn any(values: &[&str]) -> PolicyValues {
    PolicyValues { any: values.iter().map(|value| Text::from(*value)).collect(), none: Vec::new() }
}

fn not_any(values: &[&str]) -> PolicyValues {
    PolicyValues { any: Vec::new(), none: any(values).any }
}

pub(super) fn policy(action: PolicyAction, rules: Vec<AuthorizationRule>) -> AuthorizationPolicy {
    let provider = if action == PolicyAction::Custom { "warden".into() } else { Text::default() };
    AuthorizationPolicy { namespace: "ns".into(), name: "p".into(), action, provider, rules, ..Default::default() }
}

pub(super) fn to(operation: AuthorizationOperation) -> AuthorizationRule {
    AuthorizationRule { to: vec![operation], ..AuthorizationRule::default() }
}

pub(super) fn from(source: AuthorizationSource) -> AuthorizationRule {
    AuthorizationRule { from: vec![source], ..AuthorizationRule::default() }
}

pub(super) fn when(key: &str, values: &[&str]) -> AuthorizationRule {
    let condition = AuthorizationCondition { key: key.into(), values: any(values) };
    AuthorizationRule { when: vec![condition], ..AuthorizationRule::default() }
}

/// Settings with the gRPC authorizer `warden`, and the authorizer `lost` whose service does not exist.
pub(super) fn settings() -> ListenerSettings {
    let warden = ProviderService { service: "warden.ns".into(), port: 9000 };
    let provider = |name: &str, service: &ProviderService| ExtensionProvider {
        name: name.into(),
        kind: ProviderKind::ExtAuthzGrpc(Box::new(ExtAuthz { service: service.clone(), ..ExtAuthz::default() })),
    };
    let lost = ProviderService { service: "lost".into(), port: 9000 };
    let collector = Collector { host: "warden.ns".into(), cluster: "outbound|9000||warden.ns".into() };
    ListenerSettings {
        mesh: Arc::new(MeshConfig {
            trust_domain: "td".into(),
            extension_providers: vec![provider("warden", &warden), provider("lost", &lost)],
            ..MeshConfig::default()
        }),
        collectors: BTreeMap::from([(warden, collector)]),
        ..ListenerSettings::default()
    }
}

fn build(policies: &[AuthorizationPolicy], tokens: &[(&JwtRule, KeySource)]) -> PolicyFilters {
    let authorization: Vec<&AuthorizationPolicy> = policies.iter().collect();
    build_policies(&SecurityInputs {
        settings: &settings(),
        authorization: &authorization,
        tokens,
        clear_route_cache: false,
    })
}

/// The configuration of each HTTP filter and of each TCP filter, as JSON.
fn shown(filters: &PolicyFilters) -> (Vec<Value>, Vec<Value>) {
    let json = |any: &Any| sluice_proto::json::encode_any(&any.type_url, &any.value);
    let PolicyFilters { http, tcp } = filters;
    let http = http.custom.iter().chain(&http.authentication).chain(&http.authorization);
    let http = http.filter_map(|filter| match &filter.config_type {
        Some(http_filter::ConfigType::TypedConfig(any)) => Some(json(any)),
        _ => None,
    });
    let tcp = tcp.custom.iter().chain(&tcp.authentication).chain(&tcp.authorization);
    let tcp = tcp.filter_map(|filter| match &filter.config_type {
        Some(filter::ConfigType::TypedConfig(any)) => Some(json(any)),
        _ => None,
    });
    (http.collect(), tcp.collect())
}

/// Permissions and principals of the only rule, for HTTP and for TCP; null if the rule is left out.
fn rule(action: PolicyAction, rule: AuthorizationRule) -> [Value; 2] {
    let (http, tcp) = shown(&build(&[policy(action, vec![rule])], &[]));
    assert_eq!((http.len(), tcp.len()), (1, 1));
    [http, tcp].map(|filters| {
        let policies = &filters[0]["rules"]["policies"];
        match policies.get("ns[ns]-policy[p]-rule[0]") {
            Some(policy) => json!([policy["permissions"][0], policy["principals"][0]]),
            None => Value::Null,
        }
    })
}

fn principals_of(source: AuthorizationSource) -> Value {
    rule(PolicyAction::Allow, from(source))[0][1]["andIds"]["ids"][0].clone()
}

#[test]
fn principals_match_identities() {
    let identity = |source| principals_of(source)["orIds"]["ids"][0]["authenticated"]["principalName"].clone();
    let principals = |value: &str| identity(AuthorizationSource { principals: any(&[value]), ..Default::default() });
    assert_eq!(principals("*"), json!({"safeRegex": {"regex": ".+"}}));
    assert_eq!(principals("a/ns/b/sa/c"), json!({"exact": "spiffe://a/ns/b/sa/c"}));
    assert_eq!(principals("td/ns/b/*"), json!({"prefix": "spiffe://td/ns/b/"}));
    assert_eq!(principals("*/sa/c.d"), json!({"safeRegex": {"regex": "spiffe://.*/sa/c\\.d"}}));
    let namespaces = |value: &str| identity(AuthorizationSource { namespaces: any(&[value]), ..Default::default() });
    assert_eq!(namespaces("a*b"), json!({"safeRegex": {"regex": ".*/ns/a.*b/.*"}}));
    let accounts =
        |value: &str| identity(AuthorizationSource { service_accounts: any(&[value]), ..Default::default() });
    assert_eq!(accounts("sleep"), json!({"safeRegex": {"regex": "spiffe://.+/ns/ns/(.+/|)sa/sleep(/.+)?"}}));
    assert_eq!(accounts("x/sleep"), json!({"safeRegex": {"regex": "spiffe://.+/ns/x/(.+/|)sa/sleep(/.+)?"}}));
    let domains = |value: &str| identity(AuthorizationSource { trust_domains: any(&[value]), ..Default::default() });
    assert_eq!(domains("td"), json!({"prefix": "spiffe://td/"}));
    assert_eq!(domains("*"), json!({"prefix": "spiffe://"}));
    assert_eq!(domains("*.x"), json!({"safeRegex": {"regex": "spiffe://[^/]*\\.x/.*"}}));
    let condition = rule(PolicyAction::Allow, when("source.trustDomain", &["td/x"]))[0][1].clone();
    let prefix = &condition["andIds"]["ids"][0]["orIds"]["ids"][0]["authenticated"]["principalName"];
    assert_eq!(prefix, &json!({"prefix": "spiffe://td/x/"}), "a condition accepts slashes, as in Istio");
}

#[test]
fn token_principals_match_issuer_and_subject() {
    let matched = |value: &str| {
        let found = principals_of(AuthorizationSource { request_principals: any(&[value]), ..Default::default() });
        let claim = |n: usize| {
            let metadata = &found["andIds"]["ids"][n]["metadata"];
            assert_eq!(metadata["path"][1]["key"], ["iss", "sub"][n], "{value}");
            metadata["value"]["stringMatch"].clone()
        };
        [claim(0), claim(1)]
    };
    let present = json!({"safeRegex": {"regex": ".+"}});
    assert_eq!(matched("*"), [present.clone(), present.clone()]);
    assert_eq!(matched("https://i/s"), [json!({"exact": "https://i"}), json!({"exact": "s"})]);
    assert_eq!(matched("*/s"), [present.clone(), json!({"exact": "s"})]);
    assert_eq!(matched("*.x/s"), [json!({"suffix": ".x"}), json!({"exact": "s"})]);
    assert_eq!(matched("*s"), [present.clone(), json!({"suffix": "s"})]);
    assert_eq!(matched("i/*"), [json!({"exact": "i"}), present.clone()]);
    assert_eq!(matched("i/s*"), [json!({"exact": "i"}), json!({"prefix": "s"})]);
    assert_eq!(matched("i*"), [json!({"prefix": "i"}), present]);
}

#[test]
fn http_attributes_in_tcp_filters_never_allow_more() {
    let get = || to(AuthorizationOperation { methods: any(&["GET"]), ports: any(&["80"]), ..Default::default() });
    let [http, tcp] = rule(PolicyAction::Allow, get());
    assert_eq!(http[0]["andRules"]["rules"].as_array().map(Vec::len), Some(2));
    assert_eq!(tcp, Value::Null, "nothing is allowed");
    let [_, tcp] = rule(PolicyAction::Deny, get());
    assert_eq!(tcp[0]["andRules"]["rules"], json!([{"orRules": {"rules": [{"destinationPort": 80}]}}]));
    let [_, tcp] = rule(PolicyAction::Deny, when("request.headers[x]", &["1"]));
    assert_eq!(tcp, json!([{"andRules": {"rules": [{"any": true}]}}, {"andIds": {"ids": [{"any": true}]}}]));
}

#[test]
fn invalid_values_never_allow_more() {
    for bad in [
        to(AuthorizationOperation { ports: any(&["http"]), ..Default::default() }),
        to(AuthorizationOperation { paths: any(&["/{*}/a{*}"]), ..Default::default() }),
        from(AuthorizationSource { ip_blocks: any(&["10.0.0.0/40"]), ..Default::default() }),
        from(AuthorizationSource { service_accounts: any(&["a", "bad/*"]), ..Default::default() }),
        from(AuthorizationSource { service_accounts: not_any(&["bad/*"]), ..Default::default() }),
        from(AuthorizationSource { trust_domains: any(&["td", "a*b"]), ..Default::default() }),
        from(AuthorizationSource { trust_domains: not_any(&["a/b"]), ..Default::default() }),
        from(AuthorizationSource { principals: not_any(&[""]), ..Default::default() }),
        when("source.serviceAccount", &["a/b/c"]),
        when("source.trustDomain", &["a*b*"]),
        when("request.headers[]", &["1"]),
        when("request.auth.claims", &["1"]),
        when("request.scheme", &["https"]),
    ] {
        assert_eq!(rule(PolicyAction::Allow, bad.clone()), [Value::Null, Value::Null], "{bad:?}");
    }
    let [http, _] =
        rule(PolicyAction::Deny, to(AuthorizationOperation { ports: any(&["http"]), ..Default::default() }));
    assert_eq!(http[0], json!({"andRules": {"rules": [{"any": true}]}}), "everything is denied");
    let any_permission = json!({"andRules": {"rules": [{"any": true}]}});
    let any_principal = json!({"andIds": {"ids": [{"any": true}]}});
    for bad in [
        to(AuthorizationOperation { ports: any(&["80", "http"]), ..Default::default() }),
        to(AuthorizationOperation { paths: any(&["/a", "/{*}/a{*}"]), ..Default::default() }),
        from(AuthorizationSource { ip_blocks: any(&["10.0.0.0/8", "10.0.0.0/40"]), ..Default::default() }),
        from(AuthorizationSource { service_accounts: any(&["a", "bad/*"]), ..Default::default() }),
        from(AuthorizationSource { service_accounts: any(&["/a"]), ..Default::default() }),
        from(AuthorizationSource { service_accounts: not_any(&["bad/*"]), ..Default::default() }),
        from(AuthorizationSource { trust_domains: any(&["td", "a*b"]), ..Default::default() }),
        from(AuthorizationSource { trust_domains: any(&["a/b"]), ..Default::default() }),
        from(AuthorizationSource { namespaces: any(&["a", ""]), ..Default::default() }),
        from(AuthorizationSource { principals: any(&["a", ""]), ..Default::default() }),
        from(AuthorizationSource { request_principals: any(&["a/b", ""]), ..Default::default() }),
        to(AuthorizationOperation { hosts: any(&["a", ""]), ..Default::default() }),
        when("source.serviceAccount", &["a", "a/b/c"]),
        when("source.trustDomain", &["td", "a*b*"]),
        when("request.headers[]", &["1"]),
        when("request.scheme", &["https"]),
    ] {
        let [http, _] = rule(PolicyAction::Deny, bad.clone());
        assert_eq!(http, json!([any_permission, any_principal]), "the invalid value may be any: {bad:?}");
    }
}

#[test]
fn policy_with_an_unreadable_action_denies_what_it_may_deny() {
    let get = to(AuthorizationOperation { methods: any(&["GET"]), ..Default::default() });
    let (http, tcp) = shown(&build(&[policy(PolicyAction::Unreadable, vec![get])], &[]));
    assert_eq!((http.len(), tcp.len()), (2, 2));
    assert_eq!(http[0]["rules"]["action"], "DENY");
    let denied = &http[0]["rules"]["policies"]["ns[ns]-policy[p]-rule[0]"]["permissions"][0]["andRules"]["rules"];
    assert_eq!(denied.as_array().map(Vec::len), Some(1));
    let allowed = &http[1]["rules"]["policies"]["ns[ns]-policy[p]-rule[0]"]["permissions"];
    assert_eq!(allowed, &json!([{"notRule": {"any": true}}]));
}

#[test]
fn token_in_an_unknown_location_is_not_known_to_be_missing() {
    let of = |issuer: &str, location_unreadable| JwtRule {
        issuer: issuer.into(),
        location_unreadable,
        ..JwtRule::default()
    };
    let (a, lost) = (of("a", false), of("b", true));
    let (http, _) = shown(&build(&[], &[(&lost, KeySource::None)]));
    assert_eq!(http[0]["rules"][0]["requires"], json!({"providerName": "origins-0"}));
    let (http, _) = shown(&build(&[], &[(&a, KeySource::Inline("{}".into())), (&lost, KeySource::None)]));
    let alternatives = &http[0]["rules"][0]["requires"]["requiresAny"]["requirements"];
    assert_eq!(alternatives[0], json!({"providerName": "origins-0"}));
    let all = &alternatives[2]["requiresAll"]["requirements"];
    assert_eq!(all[1], json!({"providerName": "origins-1"}));
}

#[test]
fn policy_without_a_provider_does_not_break_others() {
    let custom = |provider: &str| AuthorizationPolicy {
        provider: provider.into(),
        ..policy(PolicyAction::Custom, vec![AuthorizationRule::default()])
    };
    let (http, _) = shown(&build(&[custom("warden"), custom("")], &[]));
    assert_eq!(http[0]["rules"]["action"], "DENY", "requests without a provider");
    assert!(http[2]["filterEnabledMetadata"].is_object(), "the other provider is asked");
}

#[test]
fn policy_without_rules_matches_nothing() {
    let (http, _) = shown(&build(&[policy(PolicyAction::Allow, Vec::new())], &[]));
    let never = json!({
        "permissions": [{"notRule": {"any": true}}],
        "principals": [{"notId": {"any": true}}],
    });
    assert_eq!(http[0]["rules"]["policies"]["ns[ns]-policy[p]-rule[0]"], never);
    assert_eq!(shown(&build(&[], &[])), (Vec::new(), Vec::new()));
}

#[test]
fn actions_are_ordered_and_dry_runs_are_shadow_rules() {
    let anything = || vec![AuthorizationRule::default()];
    let mut policies = [PolicyAction::Allow, PolicyAction::Deny, PolicyAction::Audit, PolicyAction::Custom]
        .map(|action| policy(action, anything()))
        .to_vec();
    policies.push(AuthorizationPolicy { dry_run: true, name: "dry".into(), ..policy(PolicyAction::Deny, anything()) });
    let (http, tcp) = shown(&build(&policies, &[]));
    let kinds = |filters: &[Value]| -> Vec<String> {
        let kind = |filter: &Value| match filter["rules"]["action"].as_str() {
            _ if filter["filterEnabledMetadata"].is_object() => "ask".to_owned(),
            None if filter["rules"].is_null() => "match".to_owned(),
            action => action.unwrap_or("ALLOW").to_owned(),
        };
        filters.iter().map(kind).collect()
    };
    assert_eq!(kinds(&http), ["match", "ask", "LOG", "DENY", "ALLOW"]);
    assert_eq!(kinds(&tcp), ["match", "ask", "LOG", "DENY", "ALLOW"]);
    assert_eq!(http[3]["shadowRulesStatPrefix"], "istio_dry_run_deny_");
    assert!(http[3]["shadowRules"]["policies"]["ns[ns]-policy[dry]-rule[0]"].is_object());
    assert_eq!(http[3]["rules"]["policies"].as_object().map(serde_json::Map::len), Some(1));
}

/// Names and configurations of the filters of a gRPC server, as JSON.
fn of_grpc(policies: &[AuthorizationPolicy]) -> Vec<(String, Value)> {
    let authorization: Vec<&AuthorizationPolicy> = policies.iter().collect();
    let filters = build_grpc_policies(&settings(), &authorization).into_iter().filter_map(|filter| {
        let Some(http_filter::ConfigType::TypedConfig(any)) = &filter.config_type else { return None };
        Some((filter.name, sluice_proto::json::encode_any(&any.type_url, &any.value)))
    });
    filters.collect()
}

#[test]
fn grpc_servers_have_one_filter_for_each_of_deny_and_allow() {
    let anything = || vec![AuthorizationRule::default()];
    let named = |name: &str, action, rules| AuthorizationPolicy { name: name.into(), ..policy(action, rules) };
    let filters = of_grpc(&[
        named("open", PolicyAction::Allow, anything()),
        named("shut", PolicyAction::Deny, [anything(), anything()].concat()),
        named("log", PolicyAction::Audit, anything()),
        named("ask", PolicyAction::Custom, anything()),
        AuthorizationPolicy { dry_run: true, ..named("dry", PolicyAction::Deny, anything()) },
    ]);
    let names: Vec<&str> = filters.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["envoy.filters.http.rbac.DENY", "envoy.filters.http.rbac"]);
    let rules = |n: usize| filters[n].1["rules"]["policies"].as_object().expect("policies").clone();
    let keys = |n: usize| rules(n).keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        (keys(0), keys(1)),
        (vec!["ns-shut-0".to_owned(), "ns-shut-1".to_owned()], vec!["ns-open-0".to_owned()])
    );
    assert!(of_grpc(&[]).is_empty());
}

#[test]
fn grpc_policies_never_allow_more_than_they_state() {
    let filters = of_grpc(&[policy(PolicyAction::Allow, Vec::new())]);
    assert_eq!(filters[0].1["rules"].get("policies"), None, "without rules, nothing is allowed");
    assert!(of_grpc(&[policy(PolicyAction::Deny, Vec::new())]).is_empty());
    let unreadable = of_grpc(&[policy(PolicyAction::Unreadable, vec![AuthorizationRule::default()])]);
    assert_eq!(unreadable[0].1["rules"]["action"], "DENY");
    assert_eq!(unreadable[1].1["rules"].get("policies"), None);
    let named = |namespace: &str, name: &str| AuthorizationPolicy {
        namespace: namespace.into(),
        name: name.into(),
        ..policy(PolicyAction::Deny, vec![AuthorizationRule::default()])
    };
    let same = of_grpc(&[named("a", "b-c"), named("a-b", "c")]);
    assert_eq!(same[0].1["rules"]["policies"].as_object().map(serde_json::Map::len), Some(2));
}

#[test]
fn grpc_rules_match_no_header_that_the_libraries_reject() {
    for name in ["grpc-timeout", "Grpc-Trace-Bin", ":scheme"] {
        let rule = |path: &str| AuthorizationRule {
            when: when(&format!("request.headers[{name}]"), &["a"]).when,
            ..to(AuthorizationOperation { paths: any(&[path]), ..AuthorizationOperation::default() })
        };
        let other = when("request.headers[x-grpc-a]", &["a"]);
        let policies =
            [policy(PolicyAction::Allow, vec![rule("/a"), other]), policy(PolicyAction::Deny, vec![rule("/b")])];
        let filters = of_grpc(&policies);
        assert!(filters.iter().all(|(_, config)| !config.to_string().contains(&format!("\"{name}\""))), "{filters:?}");
        let rules = |n: usize| filters[n].1["rules"]["policies"].as_object().expect("policies").clone();
        assert_eq!(rules(1).keys().collect::<Vec<_>>(), ["ns-p-1"], "the rule of ALLOW with {name} allows nothing");
        assert!(rules(0)["ns-p-0"].to_string().contains("/b"), "the rule of DENY denies the path, whatever {name} is");
    }
}

#[test]
fn unknown_provider_denies_requests() {
    for provider in ["lost", "absent", ""] {
        let custom = policy(PolicyAction::Custom, vec![AuthorizationRule::default()]);
        let (http, tcp) = shown(&build(&[AuthorizationPolicy { provider: provider.into(), ..custom }], &[]));
        for filters in [http, tcp] {
            assert_eq!(filters.len(), 1, "{provider}");
            assert_eq!(filters[0]["rules"]["action"], "DENY", "{provider}");
            let names: Vec<&String> = filters[0]["rules"]["policies"].as_object().expect("policies").keys().collect();
            assert!(names[0].ends_with("-deny-due-to-bad-CUSTOM-action"), "{names:?}");
        }
    }
}

#[test]
fn token_must_be_valid_or_missing() {
    let of = |issuer: &str| JwtRule { issuer: issuer.into(), ..JwtRule::default() };
    let (a, b) = (of("a"), of("b"));
    let (http, tcp) = shown(&build(&[], &[(&b, KeySource::None), (&a, KeySource::Inline("{}".into()))]));
    assert_eq!((http.len(), tcp.len()), (1, 0));
    assert_eq!(http[0]["providers"]["origins-0"]["issuer"], "a");
    assert_eq!(http[0]["providers"]["origins-0"]["localJwks"]["inlineString"], "{}");
    let refused = http[0]["providers"]["origins-1"]["localJwks"]["inlineString"].as_str().unwrap_or_default();
    assert!(refused.contains("\"kty\": \"RSA\""), "a key that signs nothing: {refused}");
    let alternatives = &http[0]["rules"][0]["requires"]["requiresAny"]["requirements"];
    assert_eq!(alternatives[0], json!({"providerName": "origins-0"}));
    let all = &alternatives[2]["requiresAll"]["requirements"];
    let either = json!({"requiresAny": {"requirements": [{"providerName": "origins-1"}, {"allowMissing": {}}]}});
    assert_eq!(all[1], either);
    let (http, _) = shown(&build(&[], &[(&a, KeySource::None)]));
    assert_eq!(http[0]["rules"][0]["requires"]["requiresAny"]["requirements"][1], json!({"allowMissing": {}}));
}

#[test]
fn waypoints_compare_the_identity_in_the_filter_state() {
    let source = AuthorizationSource { principals: any(&["td/ns/a/sa/b"]), ..AuthorizationSource::default() };
    let policy = policy(PolicyAction::Allow, vec![from(source)]);
    let identifiers = |proxy_type| {
        let mut settings = settings();
        settings.profile.proxy_type = proxy_type;
        let filters = build_policies(&SecurityInputs {
            settings: &settings,
            authorization: &[&policy],
            tokens: &[],
            clear_route_cache: false,
        });
        let (http, tcp) = shown(&filters);
        let text = format!("{http:?}{tcp:?}");
        (text.matches("io.istio.peer_principal").count(), text.matches("authenticated").count())
    };
    assert_eq!(identifiers(sluice_model::ProxyType::Waypoint), (2, 0));
    assert_eq!(identifiers(sluice_model::ProxyType::Sidecar), (0, 2));
}
