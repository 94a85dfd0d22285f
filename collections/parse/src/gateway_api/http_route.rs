//! HTTPRoutes (G02).

use serde_json::Value;
use sluice_model::gateway_api::{DeclaredRule, HttpBackend, HttpRoute, HttpRule, ParentRef};
use sluice_model::{HttpMatch, HttpRetry, NamedMatches, Object, ObjectMeta, StringMatch, Text};

use super::filter::{Filters, backend_filters, http_filters};
use super::route::{backend, hostnames, parents};
use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    // The definition declares these defaults, but an object of a file does not pass through an API server.
    let default = HttpRule { matches: vec![every_path()], ..HttpRule::default() };
    parse_route(item, findings, rule, vec![default]).map(|route| Object::HTTPRoute(Box::new(route)))
}

/// Maximum number of rules of a route. The definition permits 16, but an object of a file does not pass through an API server.
const MAX_RULES: usize = 512;

/// Reads a route for HTTP requests. `rule` reads one of its rules; without `rules`, it has those of `default`.
pub(super) fn parse_route(
    item: &Item<'_>,
    findings: &Findings,
    rule: impl Fn(&Fields<'_>) -> HttpRule,
    default: Vec<HttpRule>,
) -> Option<HttpRoute> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let parents: Vec<ParentRef> = parents(&fields, &meta.namespace);
    let hostnames = hostnames(&fields);
    let number = fields.value("rules").and_then(Value::as_array).map_or(0, Vec::len);
    if number > MAX_RULES {
        fields.reject("rules", format!("expected at most {MAX_RULES} rules, found {number}"));
        return None;
    }
    let mut rules = if fields.has("rules") { fields.list("rules", rule) } else { default };
    for (n, rule) in rules.iter_mut().enumerate() {
        if rule.action.name.is_empty() {
            let ObjectMeta { namespace, name, .. } = &meta;
            rule.action.name = format!("{namespace}.{name}.{n}").into();
        }
    }
    drop(fields);
    (!findings.has_errors()).then_some(HttpRoute { meta, parents, hostnames, rules, status: item.status() })
}

fn rule(fields: &Fields<'_>) -> HttpRule {
    let matches = if fields.has("matches") { fields.list("matches", http_match) } else { vec![every_path()] };
    let Filters { headers, redirect, rewrite, cors, allow_origins, mirrors, external_auths, unsupported } =
        http_filters(fields);
    let mut declared =
        DeclaredRule { name: fields.text("name"), allow_origins, external_auths, ..DeclaredRule::default() };
    let mut retries = fields.read("retry", retry).map(|(retries, attempts, codes)| {
        (declared.retry_attempts, declared.retry_codes) = (attempts, codes);
        retries
    });
    let mut timeout = None;
    if let Some(timeouts) = fields.object("timeouts") {
        timeout = timeouts.opt_duration("request").filter(|time| !time.is_zero());
        let each = timeouts.opt_duration("backendRequest").filter(|time| !time.is_zero());
        (declared.request_timeout, declared.backend_request_timeout) = (timeout, each);
        if let (Some(all), Some(each)) = (timeout, each)
            && each > all
        {
            timeouts.refuse("backendRequest", "`backendRequest` must not be longer than `request`");
        }
        match &mut retries {
            Some(retries) => retries.per_try_timeout = each,
            None => timeout = each.or(timeout),
        }
    }
    if fields.has("sessionPersistence") {
        fields.warn("sessionPersistence", "not supported; it is ignored");
    }
    let backends = fields.list("backendRefs", http_backend);
    if redirect.is_some() && !backends.is_empty() {
        fields.refuse("backendRefs", "`backendRefs` and a `RequestRedirect` filter are mutually exclusive");
    }
    HttpRule {
        matches,
        action: sluice_model::HttpRoute {
            name: declared.name.clone(),
            redirect,
            rewrite,
            timeout,
            retries,
            cors: cors.map(Box::new),
            headers,
            ..sluice_model::HttpRoute::default()
        },
        declared,
        backends,
        mirrors,
        unsupported_filter: unsupported,
    }
}

/// Reads a backend of a rule with its filters.
pub(super) fn http_backend(fields: &Fields<'_>) -> HttpBackend {
    let Filters { headers, unsupported, .. } = backend_filters(fields);
    HttpBackend { headers, backend: backend(fields), unsupported_filter: unsupported }
}

/// The retries of a rule, and their number and statuses as they are declared.
fn retry(fields: &Fields<'_>) -> (HttpRetry, Option<i32>, Vec<u32>) {
    let declared = fields.opt_integer("attempts");
    let attempts = declared.unwrap_or(2);
    let mut retried = Vec::new();
    if attempts < 0 {
        fields.reject("attempts", "expected an integer of at least 0");
    }
    let mut on = vec!["connect-failure".to_owned(), "refused-stream".into(), "unavailable".into(), "cancelled".into()];
    if let Some(codes) = fields.value("codes") {
        let numbers: Option<Vec<u64>> =
            codes.as_array().and_then(|codes| codes.iter().map(serde_json::Value::as_u64).collect());
        match numbers {
            Some(numbers) if numbers.iter().all(|code| (400..600).contains(code)) => {
                on.extend(numbers.iter().map(u64::to_string));
                retried = numbers.iter().filter_map(|code| u32::try_from(*code).ok()).collect();
            }
            _ => fields.reject("codes", "expected a list of HTTP statuses from 400 to 599"),
        }
    }
    let retries = HttpRetry {
        attempts,
        retry_on: if attempts == 0 { Text::default() } else { on.join(",").into() },
        backoff: fields.opt_duration("backoff"),
        ..HttpRetry::default()
    };
    (retries, declared, retried)
}

fn http_match(fields: &Fields<'_>) -> HttpMatch {
    let path = fields.object("path");
    HttpMatch {
        uri: Some(path.as_ref().and_then(path_match).unwrap_or_else(|| StringMatch::Prefix("/".into()))),
        headers: named_matches(fields, "headers"),
        query_params: named_matches(fields, "queryParams"),
        method: fields.opt_text("method").map(StringMatch::Exact),
        ..HttpMatch::default()
    }
}

fn every_path() -> HttpMatch {
    HttpMatch { uri: Some(StringMatch::Prefix("/".into())), ..HttpMatch::default() }
}

/// The match for a path; `None` if it is invalid.
fn path_match(fields: &Fields<'_>) -> Option<StringMatch> {
    let value = fields.opt_text("value").unwrap_or_else(|| "/".into());
    let kind = fields.opt_text("type");
    let kind = kind.as_ref().map_or("PathPrefix", Text::as_str);
    if kind != "RegularExpression" && !value.starts_with('/') {
        fields.refuse("value", "a path must begin with `/`");
    }
    match kind {
        "PathPrefix" if *value == *"/" => Some(StringMatch::Prefix(value)),
        "PathPrefix" => Some(StringMatch::Prefix(value.strip_suffix('/').unwrap_or(&value).into())),
        "Exact" => Some(StringMatch::Exact(value)),
        "RegularExpression" => Some(expression(fields, "value", value)),
        kind => {
            fields.reject("type", format!("expected `Exact`, `PathPrefix` or `RegularExpression`, found `{kind}`"));
            None
        }
    }
}

/// An expression that matches nothing.
const NOTHING: &str = r"[^\x00-\x{10FFFF}]";

/// A match for an expression. One that a proxy would reject, together with all other routes of the table, matches nothing. Istio
/// sends it nevertheless; the status of the route is the same.
pub(super) fn expression(fields: &Fields<'_>, name: &str, pattern: Text) -> StringMatch {
    StringMatch::Regex(match fields.findings().patterns().check(&pattern) {
        Ok(()) => pattern,
        Err(error) => {
            fields.warn(name, format!("{error}; it matches nothing"));
            NOTHING.into()
        }
    })
}

/// Conditions by name. The last of two entries with the same name is used.
pub(super) fn named_matches(fields: &Fields<'_>, name: &'static str) -> NamedMatches {
    let mut matches = NamedMatches::new();
    for condition in fields.objects(name) {
        let value = condition.text("value");
        let kind = condition.opt_text("type");
        let value = match kind.as_ref().map_or("Exact", Text::as_str) {
            "Exact" => StringMatch::Exact(value),
            "RegularExpression" => expression(&condition, "value", value),
            kind => {
                condition.reject("type", format!("expected `Exact` or `RegularExpression`, found `{kind}`"));
                continue;
            }
        };
        let name = condition.text("name");
        if name.is_empty() {
            condition.reject("name", "`name` is required");
        }
        matches.insert(name, Some(value));
    }
    matches
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn backend_request_timeout_is_per_try_with_retries() {
        let read = |rule: serde_json::Value| {
            let findings = Findings::default();
            let read = super::rule(&Fields::new(&rule, "rule", &findings).expect("an object")).action;
            (read.timeout, read.retries.and_then(|retries| retries.per_try_timeout))
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(read(json!({"timeouts": {"request": "2s"}})), (seconds(2), None));
        assert_eq!(read(json!({"timeouts": {"request": "2s", "backendRequest": "1s"}})), (seconds(1), None));
        let both = json!({"timeouts": {"request": "2s", "backendRequest": "1s"}, "retry": {"attempts": 3}});
        assert_eq!(read(both), (seconds(2), seconds(1)));
        assert_eq!(read(json!({"timeouts": {"request": "0s"}})), (None, None));
    }

    #[test]
    fn expression_that_proxies_reject_matches_nothing() {
        let read = |pattern: &str| {
            let path = json!({"type": "RegularExpression", "value": pattern});
            let headers = json!([{"name": "user", "type": "RegularExpression", "value": pattern}]);
            let (matched, findings) = (json!({"path": path, "headers": headers}), Findings::default());
            let matched = http_match(&Fields::new(&matched, "match", &findings).expect("an object"));
            assert!(!findings.has_errors(), "the route applies");
            let header = matched.headers.values().next().cloned().flatten();
            assert_eq!(matched.uri, header);
            let paths = findings.into_vec().into_iter().map(|finding| finding.field_path.to_string());
            (matched.uri, paths.collect::<Vec<_>>())
        };
        let regex = |pattern: &str| Some(StringMatch::Regex(pattern.into()));
        assert_eq!(read("/a.*"), (regex("/a.*"), Vec::new()));
        for pattern in ["/([", "(a{1000}){1000}", &"a".repeat(100_000)] {
            let (uri, paths) = read(pattern);
            assert_eq!(uri, regex(NOTHING), "{pattern:.20}");
            assert_eq!(paths, ["match.headers[0].value", "match.path.value"], "{pattern:.20}");
        }
        assert!(!regex::Regex::new(NOTHING).expect("it is valid").is_match("/"));
    }
}
