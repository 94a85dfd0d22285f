//! The `proxy-status` subcommand: the synchronization of each proxy, and the difference between Envoy and the control plane.

mod difference;

use std::collections::BTreeSet;
use std::io::{self, Write};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::answer_output::{elements, fail, print, subscribers, text};
use crate::columns::{print_columns, table};
use crate::connect::{Server, connect};
use crate::operator_args::ProxyStatusArgs;
use crate::terminal::{Colour, paint};

const EXIT_NOT_FOUND: u8 = 1;
const GAP: usize = 5;

/// Types in the order of column SUBSCRIBED TYPES. Others follow by their URL.
const FIRST_TYPES: [&str; 4] = [
    "type.googleapis.com/envoy.config.cluster.v3.Cluster",
    "type.googleapis.com/envoy.config.listener.v3.Listener",
    "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
    "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
];
const EXTENSION_TYPE: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
/// State of a type that the proxy does not subscribe to.
const IGNORED: &str = "IGNORED";

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &ProxyStatusArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    if let Some(proxy) = &args.proxy {
        return difference::run(args, proxy, out, errors);
    }
    let answers = connect(&args.server).map(Server::identified);
    let answers = answers.and_then(|server| Ok(server.get_all("syncz", &[("namespace", &args.namespace)])?.named()));
    match answers {
        Ok((answers, missing)) => {
            missing.report(errors)?;
            let all = with_replica(answers);
            print(args.output, &all, out, |all, out| {
                let titles_and_rows = match args.verbosity {
                    0 => short(all),
                    _ => verbose(all, Timestamp::now()),
                };
                print_columns(&titles_and_rows, GAP, out)
            })?;
            Ok(missing.exit_code(0))
        }
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

/// The proxies of all replicas by name, each with the replica as `istiod`.
fn with_replica(answers: Vec<(String, Value)>) -> Value {
    let mut all = Vec::new();
    for (replica, answer) in answers {
        for mut proxy in subscribers(&answer).cloned() {
            proxy["istiod"] = json!(replica);
            all.push(proxy);
        }
    }
    all.sort_by(|a, b| text(a, "proxy").cmp(text(b, "proxy")));
    all.into()
}

/// The table of the types that each proxy subscribes to.
fn short(proxies: &Value) -> Vec<Vec<String>> {
    let rows = elements(proxies).iter().map(|proxy| {
        let types = subscribed(proxy);
        let names: Vec<String> = types.iter().map(|url| short_name(url)).collect();
        let types = format!("{} ({})", names.len(), names.join(","));
        let cell = |field: &str| text(proxy, field).to_owned();
        vec![cell("proxy"), cell("cluster_id"), cell("istiod"), cell("istio_version"), types]
    });
    table(&["NAME", "CLUSTER", "ISTIOD", "VERSION", "SUBSCRIBED TYPES"], rows)
}

/// The table of the state of each type.
fn verbose(proxies: &Value, now: Timestamp) -> Vec<Vec<String>> {
    let proxies = elements(proxies);
    let mut types: BTreeSet<&str> = FIRST_TYPES.into_iter().chain([EXTENSION_TYPE]).collect();
    types.extend(proxies.iter().flat_map(subscribed));
    let names: Vec<String> = types.iter().map(|url| short_name(url)).collect();
    let titles: Vec<&str> =
        ["NAME", "CLUSTER"].into_iter().chain(names.iter().map(String::as_str)).chain(["ISTIOD", "VERSION"]).collect();
    let rows = proxies.iter().map(|proxy| {
        let cell = |field: &str| text(proxy, field).to_owned();
        let states = types.iter().map(|url| coloured(state(&proxy["resources"][*url], now)));
        [cell("proxy"), cell("cluster_id")]
            .into_iter()
            .chain(states)
            .chain([cell("istiod"), cell("istio_version")])
            .collect()
    });
    table(&titles, rows)
}

/// Types that a proxy subscribes to, in the order of the column.
fn subscribed(proxy: &Value) -> Vec<&str> {
    let known: BTreeSet<&str> =
        proxy["resources"].as_object().into_iter().flatten().map(|(url, _)| url.as_str()).collect();
    let first = FIRST_TYPES.into_iter().filter(|url| known.contains(url));
    let others = known.iter().copied().filter(|url| !FIRST_TYPES.contains(url));
    first.chain(others).collect()
}

/// The short name of a type: `CDS`.
fn short_name(type_url: &str) -> String {
    let name = type_url.rsplit('.').next().unwrap_or(type_url);
    let known = [
        ("Cluster", "CDS"),
        ("Listener", "LDS"),
        ("ClusterLoadAssignment", "EDS"),
        ("RouteConfiguration", "RDS"),
        ("TypedExtensionConfig", "ECDS"),
        ("Secret", "SDS"),
        ("NameTable", "NDS"),
        ("VirtualHost", "VHDS"),
        ("Bootstrap", "BDS"),
        ("ProxyConfig", "PCDS"),
        ("Address", "WDS"),
        ("Workload", "WTDS"),
        ("Authorization", "WADS"),
    ];
    known.iter().find(|(type_name, _)| *type_name == name).map_or(name, |(_, short)| short).to_owned()
}

/// The state of a type: whether the proxy has acknowledged the last response.
fn state(of_type: &Value, now: Timestamp) -> String {
    if !of_type.is_object() {
        return IGNORED.to_owned();
    }
    let (sent, acked) = (text(of_type, "sent"), text(of_type, "acked"));
    let state = match () {
        () if sent.is_empty() => return "NOT SENT".to_owned(),
        () if !text(of_type, "lastError").is_empty() => "ERROR",
        () if sent == acked => "SYNCED",
        () => "STALE",
    };
    match text(of_type, "sentTime").parse::<Timestamp>() {
        Ok(at) => format!("{state} ({})", age(now.as_second() - at.as_second())),
        Err(_) => state.to_owned(),
    }
}

/// A state in its colour.
fn coloured(state: String) -> String {
    match state.split(' ').next() {
        Some("SYNCED") => paint(Colour::Good, &state),
        Some("STALE") => paint(Colour::Warning, &state),
        Some("ERROR") => paint(Colour::Bad, &state),
        _ => state,
    }
}

/// An age with one or two units, as kubectl prints it.
fn age(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let two = |number: i64, unit: char, rest: i64, rest_unit: char| match rest {
        0 => format!("{number}{unit}"),
        rest => format!("{number}{unit}{rest}{rest_unit}"),
    };
    match seconds {
        ..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, 'd', hours % 24, 'h'),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2_920 => two(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies() -> Value {
        let types = |last_error: &str| {
            let of = |sent: &str, acked: &str, error: &str| json!({"sent": sent, "acked": acked, "sentTime": "2026-01-01T00:00:00Z", "lastError": error});
            json!({
                FIRST_TYPES[0]: of("1", "1", ""),
                FIRST_TYPES[1]: of("2", "1", last_error),
                FIRST_TYPES[2]: of("3", "2", ""),
                FIRST_TYPES[3]: of("", "", ""),
                "type.googleapis.com/istio.networking.nds.v1.NameTable": of("4", "4", ""),
            })
        };
        let proxy = |name: &str, error: &str| json!({"proxy": name, "cluster_id": "Kubernetes", "istio_version": "1.30.0", "resources": types(error)});
        with_replica(vec![
            ("istiod-b".to_owned(), json!([proxy("web.shop", "refused")])),
            ("istiod-a".to_owned(), json!([proxy("edge.shop", "")])),
        ])
    }

    fn printed(rows: &[Vec<String>]) -> String {
        let mut out = Vec::new();
        print_columns(rows, GAP, &mut out).expect("written");
        crate::terminal::plain(&String::from_utf8(out).expect("UTF-8"))
    }

    #[test]
    fn proxies_of_all_replicas_are_listed_with_the_columns_of_istioctl() {
        let expected = "\
NAME          CLUSTER        ISTIOD       VERSION     SUBSCRIBED TYPES
edge.shop     Kubernetes     istiod-a     1.30.0      5 (CDS,LDS,EDS,RDS,NDS)
web.shop      Kubernetes     istiod-b     1.30.0      5 (CDS,LDS,EDS,RDS,NDS)
";
        assert_eq!(printed(&short(&proxies())), expected);
    }

    #[test]
    fn each_type_has_a_state_and_an_age() {
        let now = "2026-01-01T00:01:11Z".parse().expect("a time");
        let expected = "\
NAME          CLUSTER        CDS              ECDS        EDS             LDS             RDS          NDS              ISTIOD       VERSION
edge.shop     Kubernetes     SYNCED (71s)     IGNORED     STALE (71s)     STALE (71s)     NOT SENT     SYNCED (71s)     istiod-a     1.30.0
web.shop      Kubernetes     SYNCED (71s)     IGNORED     STALE (71s)     ERROR (71s)     NOT SENT     SYNCED (71s)     istiod-b     1.30.0
";
        assert_eq!(printed(&verbose(&proxies(), now)), expected);
    }

    #[test]
    fn ages_have_two_units_at_most() {
        let ages = [
            (-3, "0s"),
            (119, "119s"),
            (130, "2m10s"),
            (700, "11m"),
            (10_860, "3h1m"),
            (90_000, "25h"),
            (180_000, "2d2h"),
        ];
        for (seconds, expected) in ages {
            assert_eq!(age(seconds), expected);
        }
    }
}
