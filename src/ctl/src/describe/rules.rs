//! DestinationRules and VirtualServices of a service.

use std::io::{self, Write};

use serde_json::Value;

use super::short_name;
use crate::answer_output::{elements, joined, list, text};

pub(super) fn destination_rule(rule: &Value, namespace: &str, out: &mut dyn Write) -> io::Result<()> {
    let Some(object) = rule["object"]["object"].as_str() else { return Ok(()) };
    writeln!(out, "DestinationRule: {} for \"{}\"", short_name(object, namespace), text(rule, "host"))?;
    let (matching, others) = (joined(rule, "matchingSubsets", ","), joined(rule, "otherSubsets", ","));
    if matching.is_empty() && !others.is_empty() {
        writeln!(out, "   WARNING POD DOES NOT MATCH ANY SUBSETS.  (Non matching subsets {others})")?;
    }
    if !(matching.is_empty() && others.is_empty()) {
        writeln!(out, "   Matching subsets: {matching}")?;
    }
    if !others.is_empty() {
        writeln!(out, "      (Non-matching subsets {others})")?;
    }
    if rule["policy"].is_null() {
        writeln!(out, "   No Traffic Policy")?;
    } else {
        policy(&rule["policy"], "   Traffic Policy TLS Mode", "   ", out)?;
    }
    for (title, of) in [("Port Level Settings", &rule["ports"]), ("Subset Policies", &rule["subsets"])] {
        let of = of.as_object().into_iter().flatten().collect::<Vec<_>>();
        if !of.is_empty() {
            writeln!(out, "   {title}:")?;
        }
        for (name, settings) in of {
            writeln!(out, "    {name}:")?;
            policy(settings, "      TLS Mode", "      ", out)?;
        }
    }
    Ok(())
}

fn policy(policy: &Value, tls_title: &str, indent: &str, out: &mut dyn Write) -> io::Result<()> {
    if let Some(mode) = policy["tlsMode"].as_str() {
        writeln!(out, "{tls_title}: {mode}")?;
    }
    match joined(policy, "settings", "/").as_str() {
        "" => Ok(()),
        settings => writeln!(out, "{indent}Policies: {settings}"),
    }
}

pub(super) fn virtual_services(of: &Value, namespace: &str, out: &mut dyn Write) -> io::Result<()> {
    list(of, "virtualServices").iter().try_for_each(|it| virtual_service(it, namespace, out))
}

fn virtual_service(of: &Value, namespace: &str, out: &mut dyn Write) -> io::Result<()> {
    let object = of["object"]["object"].as_str().unwrap_or_default();
    let from = of["generatedFrom"].as_str().map(|kind| format!(" (from {kind})")).unwrap_or_default();
    writeln!(out, "VirtualService: {}{from}", short_name(object, namespace))?;
    if let Some(first) = of["shadowedBy"].as_str() {
        writeln!(out, "   WARNING: {first} has precedence for clients without a gateway")?;
    }
    let routes = list(of, "routes");
    let (reaching, missing): (Vec<&Value>, Vec<&Value>) = routes.iter().partition(|route| route["reaches"] == true);
    if reaching.is_empty() {
        for (kind, start) in [("HTTP", "http"), ("TLS", "tls"), ("TCP", "tcp")] {
            let count = routes.iter().filter(|route| text(route, "field").starts_with(start)).count();
            if count > 0 {
                writeln!(out, "   WARNING: No destinations match pod subsets (checked {count} {kind} routes)")?;
            }
        }
        return missing.iter().flat_map(|route| mismatches(route)).try_for_each(|line| writeln!(out, "      {line}"));
    }
    let mut facts = 0;
    for line in reaching.iter().flat_map(|route| route_lines(route)) {
        facts += 1;
        writeln!(out, "   {line}")?;
    }
    if !missing.is_empty() {
        writeln!(out, "   {} additional destination(s) that will not reach this pod", missing.len())?;
    } else if facts == 0 {
        writeln!(out, "   {} route(s)", routes.len())?;
    }
    Ok(())
}

/// What a route that reaches the pod does.
fn route_lines(route: &Value) -> Vec<String> {
    let mut lines: Vec<String> = list(route, "destinations").iter().map(destination).collect();
    let actions = joined(route, "actions", ", ");
    let matches = list(route, "matches").iter().filter_map(Value::as_str).map(|it| format!("Match: {it}"));
    let conditions: Vec<String> = Some(actions).filter(|it| !it.is_empty()).into_iter().chain(matches).collect();
    if !conditions.is_empty() {
        lines.push(conditions.join(", "));
    }
    lines
}

fn destination(to: &Value) -> String {
    let subset = Some(text(to, "subset")).filter(|subset| !subset.is_empty());
    let subset = subset.map(|subset| format!(" subset \"{subset}\"")).unwrap_or_default();
    let weight = to["weight"].as_i64().filter(|weight| *weight > 0);
    let weight = weight.map(|weight| format!(" with weight {weight}%")).unwrap_or_default();
    format!("Route to host \"{}\"{subset}{weight}", text(to, "host"))
}

/// Why a route does not reach the pod.
fn mismatches(route: &Value) -> Vec<String> {
    let matches = elements(&route["matches"]);
    let matches = if matches.is_empty() { "everything".to_owned() } else { joined(route, "matches", ", ") };
    let line = |to: &Value| {
        let subset = text(to, "subset");
        match to["problem"].as_str() {
            Some("non-matching subset") => format!("Route to non-matching subset {subset} for ({matches})"),
            Some("unknown subset") => format!("Warning: Route to UNKNOWN subset {subset}; check the DestinationRule"),
            Some(_) => format!("Warning: Route to subset {subset} but NO DESTINATION RULE defining subsets!"),
            None => destination(to),
        }
    };
    list(route, "destinations").iter().map(line).collect()
}
