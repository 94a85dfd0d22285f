//! Evaluation of security filters, as far as the policies of these tests use them. The listener is JSON.

use std::cell::RefCell;
use std::collections::HashMap;

use regex::Regex;
use serde_json::Value;
use sluice_proto::istio::security::string_match::MatchType;
use sluice_proto::istio::security::{Address, Authorization, Match, StringMatch};

thread_local! {
    /// Expressions by their text. The same ones are evaluated for many requests.
    static EXPRESSIONS: RefCell<HashMap<String, Regex>> = RefCell::default();
}

/// A connection of a client with an identity.
#[derive(Clone, Debug)]
pub(super) struct TestConnection {
    pub(super) port: u32,
    pub(super) account: &'static str,
    pub(super) address: &'static str,
}

impl TestConnection {
    fn principal(&self) -> String {
        format!("spiffe://td/ns/east/sa/{}", self.account)
    }
}

/// A token of a request.
#[derive(Clone, Debug)]
pub(super) struct TestToken {
    /// Name of the header with the token.
    pub(super) place: &'static str,
    pub(super) issuer: &'static str,
    pub(super) audience: &'static str,
    /// The key that signed it; that of an issuer has its name.
    pub(super) key: &'static str,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct TestRequest {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// Value of the header `x-id`.
    pub(super) header: &'static str,
    pub(super) token: Option<TestToken>,
    pub(super) connection: TestConnection,
}

/// Whether the filters of a listener accept the request.
pub(super) fn accepts(listener: &Value, request: &TestRequest) -> bool {
    let filters = http_filters(listener).expect("HTTP filters");
    let mut verified = None;
    for filter in filters {
        let config = &filter["typedConfig"];
        match filter["name"].as_str() {
            Some("envoy.filters.http.jwt_authn") => {
                let requires = &config["rules"][0]["requires"];
                if !satisfied(requires, &config["providers"], request) {
                    return false;
                }
                let providers = config["providers"].as_object().into_iter().flatten();
                let valid = providers.filter(|(_, provider)| verify(provider, request) == Some(true)).count() > 0;
                verified = request.token.as_ref().filter(|_| valid);
            }
            Some("envoy.filters.http.rbac") => {
                // The tests have no provider that accepts.
                for rules in [&config["rules"], &config["shadowRules"]] {
                    let found = rules["policies"].as_object().into_iter().flatten();
                    let matched = found.filter(|(_, policy)| policy_matches(policy, request, verified)).count() > 0;
                    let allowed = match rules["action"].as_str() {
                        _ if rules.is_null() => true,
                        Some("LOG") => true,
                        Some("DENY") => !matched,
                        _ => matched,
                    };
                    if !allowed {
                        return false;
                    }
                }
            }
            _ => {}
        }
    }
    true
}

fn http_filters(value: &Value) -> Option<&Vec<Value>> {
    match value {
        Value::Object(fields) => match fields.get("httpFilters") {
            Some(Value::Array(filters)) => Some(filters),
            _ => fields.values().find_map(http_filters),
        },
        Value::Array(elements) => elements.iter().find_map(http_filters),
        _ => None,
    }
}

/// Whether a filter chain for the port accepts plaintext.
pub(super) fn accepts_plaintext(listener: &Value, port: u64) -> bool {
    let chains = listener["filterChains"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_port = |chain: &&Value| chain["filterChainMatch"]["destinationPort"] == port;
    let any_port = |chain: &&Value| chain["filterChainMatch"]["destinationPort"].is_null();
    let mut chosen: Vec<&Value> = chains.iter().filter(of_port).collect();
    if chosen.is_empty() {
        chosen = chains.iter().filter(any_port).collect();
    }
    chosen.iter().any(|chain| chain["transportSocket"].is_null())
}

/// Whether the token of the provider is valid; `None` without a token.
fn verify(provider: &Value, request: &TestRequest) -> Option<bool> {
    let headers: Vec<&str> =
        provider["fromHeaders"].as_array().into_iter().flatten().filter_map(|header| header["name"].as_str()).collect();
    let by_default = headers.is_empty() && provider["fromParams"].is_null() && provider["fromCookies"].is_null();
    let token = request
        .token
        .as_ref()
        .filter(|token| headers.contains(&token.place) || (by_default && token.place == "authorization"))?;
    let issuer = provider["issuer"].as_str().unwrap_or_default();
    let mut audiences = provider["audiences"].as_array().into_iter().flatten();
    let audience = provider["audiences"].is_null() || audiences.any(|audience| audience == token.audience);
    let keys = provider["localJwks"]["inlineString"].as_str().unwrap_or_default();
    let signed = keys.contains(&format!("\"k\":\"{}\"", token.key));
    Some((issuer.is_empty() || issuer == token.issuer) && audience && signed)
}

fn satisfied(requirement: &Value, providers: &Value, request: &TestRequest) -> bool {
    let each = |list: &str| {
        let all = requirement[list]["requirements"].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().map(|one| satisfied(one, providers, request)).collect::<Vec<_>>()
    };
    if let Some(name) = requirement["providerName"].as_str() {
        return verify(&providers[name], request) == Some(true);
    }
    if requirement["requiresAny"].is_object() {
        let missing_allowed = requirement["requiresAny"]["requirements"].as_array().into_iter().flatten();
        let missing_allowed = missing_allowed.clone().any(|one| one["allowMissing"].is_object());
        // `allowMissing` is about the tokens of its neighbours.
        let names = requirement["requiresAny"]["requirements"].as_array().into_iter().flatten();
        let mut found = names.filter_map(|one| one["providerName"].as_str());
        let missing = missing_allowed && found.all(|name| verify(&providers[name], request).is_none());
        return missing || each("requiresAny").into_iter().any(|one| one);
    }
    if requirement["requiresAll"].is_object() {
        return each("requiresAll").into_iter().all(|one| one);
    }
    false
}

fn policy_matches(policy: &Value, request: &TestRequest, verified: Option<&TestToken>) -> bool {
    let any =
        |list: &str| policy[list].as_array().into_iter().flatten().any(|rule| rule_matches(rule, request, verified));
    any("permissions") && any("principals")
}

/// Whether a permission or a principal matches.
fn rule_matches(rule: &Value, request: &TestRequest, verified: Option<&TestToken>) -> bool {
    let (kind, value) = rule.as_object().and_then(|fields| fields.iter().next()).expect("one field");
    let list = |name: &str| {
        value[name]
            .as_array()
            .into_iter()
            .flatten()
            .map(|rule| rule_matches(rule, request, verified))
            .collect::<Vec<_>>()
    };
    match kind.as_str() {
        "any" => true,
        "andRules" => list("rules").into_iter().all(|one| one),
        "orRules" => list("rules").into_iter().any(|one| one),
        "andIds" => list("ids").into_iter().all(|one| one),
        "orIds" => list("ids").into_iter().any(|one| one),
        "notRule" | "notId" => !rule_matches(value, request, verified),
        "destinationPort" => *value == request.connection.port,
        "urlPath" => text_matches(&value["path"], request.path),
        "authenticated" => text_matches(&value["principalName"], &request.connection.principal()),
        "header" => {
            let header = match value["name"].as_str() {
                Some(":method") => request.method,
                Some("x-id") => request.header,
                other => panic!("unknown header {other:?}"),
            };
            text_matches(&value["stringMatch"], header)
        }
        "metadata" => {
            let claim = match value["path"][1]["key"].as_str() {
                Some("iss") => verified.map(|token| token.issuer),
                Some("sub") => verified.map(|_| "subject"),
                _ => None,
            };
            claim.is_some_and(|claim| metadata_matches(&value["value"], claim))
        }
        other => panic!("unknown rule {other}"),
    }
}

fn metadata_matches(matcher: &Value, claim: &str) -> bool {
    if let Some(alternatives) = matcher["orMatch"]["valueMatchers"].as_array() {
        return alternatives.iter().any(|one| metadata_matches(one, claim));
    }
    // The claims of the tests are no lists.
    matcher["stringMatch"].is_object() && text_matches(&matcher["stringMatch"], claim)
}

fn text_matches(matcher: &Value, text: &str) -> bool {
    let (kind, value) = matcher.as_object().and_then(|fields| fields.iter().next()).expect("one field");
    let pattern = value.as_str().or_else(|| value["regex"].as_str()).expect("a text");
    match kind.as_str() {
        "exact" => text == pattern,
        "prefix" => text.starts_with(pattern),
        "suffix" => text.ends_with(pattern),
        "safeRegex" => EXPRESSIONS.with_borrow_mut(|all| {
            let new = || Regex::new(&format!("^(?:{pattern})$")).expect("a regex");
            all.entry(pattern.to_owned()).or_insert_with(new).is_match(text)
        }),
        other => panic!("unknown matcher {other}"),
    }
}

/// Whether a policy of ztunnel matches a connection.
pub(super) fn matches(policy: &Authorization, connection: &TestConnection) -> bool {
    policy.groups.iter().any(|group| {
        group.rules.iter().all(|clause| {
            clause.matches.is_empty() || clause.matches.iter().any(|one| connection_matches(one, connection))
        })
    })
}

fn connection_matches(one: &Match, connection: &TestConnection) -> bool {
    fn list<T>(any: &[T], none: &[T], found: impl Fn(&T) -> bool) -> bool {
        (any.is_empty() || any.iter().any(&found)) && !none.iter().any(&found)
    }
    let principal = connection.principal();
    let principal = principal.trim_start_matches("spiffe://");
    let in_block = |block: &Address| {
        let address: std::net::Ipv4Addr = connection.address.parse().expect("an address");
        let length = usize::try_from(block.length).expect("a length") / 8;
        block.address.get(..length) == address.octets().get(..length)
    };
    // An empty match never matches.
    *one != Match::default()
        && list(&one.destination_ports, &one.not_destination_ports, |port| *port == connection.port)
        && list(&one.source_ips, &one.not_source_ips, in_block)
        && list(&one.principals, &one.not_principals, |text| string_matches(text, principal))
        && list(&one.namespaces, &one.not_namespaces, |text| string_matches(text, "east"))
        && list(&one.service_accounts, &one.not_service_accounts, |account| {
            account.namespace == "east" && account.service_account == connection.account
        })
}

fn string_matches(matcher: &StringMatch, text: &str) -> bool {
    match &matcher.match_type {
        Some(MatchType::Exact(exact)) => exact == text,
        Some(MatchType::Prefix(prefix)) => text.starts_with(prefix),
        Some(MatchType::Suffix(suffix)) => text.ends_with(suffix),
        Some(MatchType::Presence(_)) => !text.is_empty(),
        None => false,
    }
}
