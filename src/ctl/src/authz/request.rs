//! How policies decide about a request.

use std::io::{self, Write};

use serde_json::Value;

use crate::answer_output::{fail, joined, list, object, print, text};
use crate::authz_args::AuthzCheckArgs;
use crate::connect::{QueryError, connect};
use crate::terminal::{Colour, paint};

const EXIT_NOT_FOUND: u8 = 1;
const EXIT_DENIED: u8 = 4;
const EXIT_UNDECIDED: u8 = 5;

/// Asks the control plane, and prints its answer.
pub(super) fn run(args: &AuthzCheckArgs, asked: &str, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    match answer(args, asked) {
        Ok(answer) => {
            print(args.output, &answer, out, lines)?;
            Ok(match text(&answer, "decision") {
                "ALLOW" => 0,
                "DENY" => EXIT_DENIED,
                _ => EXIT_UNDECIDED,
            })
        }
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

fn answer(args: &AuthzCheckArgs, asked: &str) -> Result<Value, QueryError> {
    let (method, path) = method_and_path(asked)?;
    let of = &args.attributes;
    let owned = |text: &Option<String>| text.clone().unwrap_or_default();
    let shown = |value: Option<String>| value.unwrap_or_default();
    let mut claims = of.claims.clone();
    if let Some(principal) = &of.request_principal {
        let (issuer, subject) = principal.rsplit_once('/').ok_or_else(|| {
            QueryError::Flags(format!("--request-principal {principal:?}: ISSUER/SUBJECT is accepted"))
        })?;
        claims.extend([format!("iss:{issuer}"), format!("sub:{subject}")]);
    }
    let parameters = [
        ("pod", owned(&args.source.proxy)),
        ("namespace", args.source.namespace.clone()),
        ("method", method.to_owned()),
        ("path", path.to_owned()),
        ("host", owned(&of.host)),
        ("headers", of.headers.join("\n")),
        ("port", shown(of.port.map(|port| port.to_string()))),
        ("principal", owned(&of.source_principal)),
        ("sourceNamespace", owned(&of.source_namespace)),
        ("sourceAccount", owned(&of.source_account)),
        ("sourceIP", shown(of.source_ip.map(|address| address.to_string()))),
        ("remoteIP", shown(of.remote_ip.map(|address| address.to_string()))),
        ("serverName", owned(&of.server_name)),
        ("claims", claims.join("\n")),
    ];
    let parameters: Vec<(&str, &str)> = parameters.iter().map(|(name, value)| (*name, value.as_str())).collect();
    connect(&args.source.control_plane())?.get("authorization", &parameters)
}

/// `GET /admin`, `/admin`, or nothing for TCP.
fn method_and_path(asked: &str) -> Result<(&str, &str), QueryError> {
    let asked = asked.trim();
    if asked.eq_ignore_ascii_case("tcp") {
        return Ok(("", ""));
    }
    let (method, path) = asked.split_once(' ').unwrap_or(("GET", asked));
    match path.trim().starts_with('/') {
        true => Ok((method, path.trim())),
        false => {
            Err(QueryError::Flags(format!("--request {asked:?}: METHOD PATH is accepted, such as GET /admin, or tcp")))
        }
    }
}

fn lines(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    let decision = text(answer, "decision");
    let colour = match decision {
        "ALLOW" => Colour::Good,
        "DENY" => Colour::Bad,
        _ => Colour::Warning,
    };
    writeln!(out, "{}: {}", paint(colour, decision), text(answer, "reason"))?;
    let decided_by = &answer["decidedBy"];
    if decided_by.is_object() {
        writeln!(out, "   Policy: {}, {}", object(decided_by), text(decided_by, "rule"))?;
    }
    let principal = answer["principal"].as_str().unwrap_or("none, the connection has no mutual TLS");
    writeln!(out, "   Client: {principal}")?;
    let source = &answer["mutualTls"]["source"];
    let source = if source.is_object() { object(source) } else { "default".to_owned() };
    let port = answer["port"].as_u64().map(|port| format!(" at port {port}")).unwrap_or_default();
    writeln!(out, "   Mutual TLS of {}{port}: {} ({source})", text(answer, "pod"), text(&answer["mutualTls"], "mode"))?;
    for path in list(answer, "waypoints") {
        let service = path["service"].as_str().map(|service| format!(" of {service}")).unwrap_or_default();
        let (waypoint, decision) = (text(path, "waypoint"), text(path, "decision"));
        writeln!(out, "   Through waypoint {waypoint}{service}: {decision}: {}", text(path, "reason"))?;
        for rule in list(path, "matched") {
            writeln!(out, "      {}: {}, {}", text(rule, "action"), object(rule), text(rule, "rule"))?;
        }
    }
    for note in list(answer, "notes").iter().filter_map(Value::as_str) {
        writeln!(out, "   Note: {note}")?;
    }
    let matched = list(answer, "matched");
    writeln!(out, "{} of {} that apply to the pod:", rules(matched.len()), policies(&answer["policies"]))?;
    for rule in matched {
        let may = joined(rule, "dependsOn", ", ");
        let may = if may.is_empty() { String::new() } else { format!(", if {may} matches") };
        let dry_run = if rule["dryRun"] == true { ", dry run" } else { "" };
        writeln!(out, "   {}: {}, {}{may}{dry_run}", text(rule, "action"), object(rule), text(rule, "rule"))?;
    }
    Ok(())
}

fn rules(count: usize) -> String {
    match count {
        0 => "No rule matches".to_owned(),
        1 => "1 matching rule".to_owned(),
        count => format!("{count} matching rules"),
    }
}

fn policies(count: &Value) -> String {
    match count.as_u64().unwrap_or_default() {
        1 => "1 policy".to_owned(),
        count => format!("{count} policies"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_have_a_method_and_a_path() {
        let of = |text| method_and_path(text).ok();
        assert_eq!(of("POST /orders?id=1"), Some(("POST", "/orders?id=1")));
        assert_eq!(of("/orders"), Some(("GET", "/orders")));
        assert_eq!(of("tcp"), Some(("", "")));
        for text in ["", "GET", "GET orders", "udp"] {
            assert_eq!(method_and_path(text).expect_err(text).exit_code(1), 2, "{text}");
        }
    }

    #[test]
    fn answer_names_the_policy_and_the_rule() {
        let rule = json!({"object": "AuthorizationPolicy/shop/no", "source": "shop.yaml:7", "action": "DENY", "rule": "spec.rules[0]", "dryRun": false});
        let answer = json!({
            "decision": "DENY", "reason": "it matches", "decidedBy": rule, "matched": [rule], "policies": 2, "pod": "cart.shop",
            "port": 8080, "mutualTls": {"mode": "PERMISSIVE"}, "notes": [],
        });
        let mut out = Vec::new();
        lines(&answer, &mut out).expect("written");
        let expected = "\
DENY: it matches
   Policy: AuthorizationPolicy/shop/no (shop.yaml:7), spec.rules[0]
   Client: none, the connection has no mutual TLS
   Mutual TLS of cart.shop at port 8080: PERMISSIVE (default)
1 matching rule of 2 policies that apply to the pod:
   DENY: AuthorizationPolicy/shop/no (shop.yaml:7), spec.rules[0]
";
        assert_eq!(crate::terminal::plain(&String::from_utf8_lossy(&out)), expected);
    }
}
