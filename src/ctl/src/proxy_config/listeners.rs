//! The table of listeners.

use serde_json::Value;

use super::args::Filter;
use super::routes::condition;
use crate::answer_output::{list, text};

pub(super) const TITLES: [&str; 4] = ["ADDRESSES", "PORT", "MATCH", "DESTINATION"];
pub(super) const SHORT_TITLES: [&str; 3] = ["ADDRESSES", "PORT", "TYPE"];

const HTTP_FILTER: &str = "envoy.filters.network.http_connection_manager";
const TCP_FILTER: &str = "envoy.filters.network.tcp_proxy";
const BLACK_HOLE: &str = "BlackHoleCluster";

/// Application protocols that have a name together.
const PROTOCOLS: [(&str, &[&str]); 4] = [
    ("HTTP TLS", &["http/1.0", "http/1.1", "h2c", "istio-http/1.0", "istio-http/1.1", "istio-h2"]),
    ("Istio HTTP Plain", &["istio", "istio-http/1.0", "istio-http/1.1", "istio-h2"]),
    ("TCP TLS", &["istio-peer-exchange", "istio"]),
    ("HTTP", &["http/1.0", "http/1.1", "h2c"]),
];

/// The selected listeners by port, address and type.
pub(super) fn select<'d>(mut listeners: Vec<&'d Value>, filter: &Filter) -> Vec<&'d Value> {
    listeners.retain(|listener| {
        filter
            .address
            .as_deref()
            .is_none_or(|address| addresses(listener).iter().any(|it| it.eq_ignore_ascii_case(address)))
            && filter.port.is_none_or(|wanted| port(listener) == u64::from(wanted))
            && filter.kind.as_deref().is_none_or(|wanted| kind(listener).eq_ignore_ascii_case(wanted))
    });
    listeners.sort_by_key(|listener| (port(listener), addresses(listener).into_iter().next(), kind(listener)));
    listeners
}

/// Cells of a listener's filter chains.
pub(super) fn rows(listener: &Value) -> Vec<Vec<String>> {
    let mut chains: Vec<(String, String)> =
        chains(listener).map(|chain| (conditions(&chain["filterChainMatch"]), destination(chain))).collect();
    chains.sort_by(|(_, a), (_, b)| b.cmp(a));
    let (addresses, port) = (addresses(listener).join(","), port(listener).to_string());
    let row = |(matched, destination)| vec![addresses.clone(), port.clone(), matched, destination];
    chains.into_iter().map(row).collect()
}

/// Cells of a listener without its filter chains.
pub(super) fn short_row(listener: &Value) -> Vec<String> {
    vec![addresses(listener).join(","), port(listener).to_string(), kind(listener).to_owned()]
}

fn chains(listener: &Value) -> impl Iterator<Item = &Value> {
    list(listener, "filterChains").iter().chain(listener.get("defaultFilterChain"))
}

fn addresses(listener: &Value) -> Vec<String> {
    let address = &listener["address"];
    let main = address["socketAddress"]["address"].as_str().or_else(|| address["pipe"]["path"].as_str());
    let more = list(listener, "additionalAddresses").iter();
    let more = more.filter_map(|it| it["address"]["socketAddress"]["address"].as_str());
    std::iter::once(main.unwrap_or_default()).chain(more).map(str::to_owned).collect()
}

fn port(listener: &Value) -> u64 {
    listener["address"]["socketAddress"]["portValue"].as_u64().unwrap_or_default()
}

/// Whether the listener expects HTTP or other TCP.
fn kind(listener: &Value) -> &'static str {
    let (mut has_http, mut has_tcp) = (false, false);
    for filter in chains(listener).flat_map(|chain| list(chain, "filters")) {
        match text(filter, "name") {
            HTTP_FILTER => has_http = true,
            TCP_FILTER if !is_black_hole(filter) => has_tcp = true,
            _ => {}
        }
    }
    match (has_http, has_tcp) {
        (true, false) => "HTTP",
        (true, true) => "HTTP+TCP",
        (false, true) => "TCP",
        (false, false) => "UNKNOWN",
    }
}

fn is_black_hole(filter: &Value) -> bool {
    filter["typedConfig"].to_string().contains(BLACK_HOLE)
}

/// When a filter chain is used.
fn conditions(condition: &Value) -> String {
    let texts = |field: &str| list(condition, field).iter().filter_map(Value::as_str).collect::<Vec<_>>();
    let mut parts = Vec::new();
    let names = texts("serverNames");
    if !names.is_empty() {
        parts.push(format!("SNI: {}", names.join(",")));
    }
    let transport = text(condition, "transportProtocol");
    if !transport.is_empty() {
        parts.push(format!("Trans: {transport}"));
    }
    let protocols = texts("applicationProtocols");
    if !protocols.is_empty() {
        let known = PROTOCOLS.iter().find(|(_, known)| *known == protocols.as_slice());
        parts.push(format!("App: {}", known.map_or_else(|| protocols.join(","), |(name, _)| (*name).to_owned())));
    }
    let port = condition["destinationPort"].as_u64().map(|port| format!(":{port}"));
    let range = |it: &Value| format!("{}/{}", text(it, "addressPrefix"), it["prefixLen"].as_u64().unwrap_or_default());
    let ranges: Vec<String> = list(condition, "prefixRanges").iter().map(range).collect();
    match (ranges.is_empty(), port) {
        (false, port) => parts.push(format!("Addr: {}{}", ranges.join(","), port.unwrap_or_default())),
        (true, Some(port)) => parts.push(format!("Addr: *{port}")),
        (true, None) => {}
    }
    if parts.is_empty() { "ALL".to_owned() } else { parts.join("; ") }
}

/// Where the requests or connections of a filter chain go.
fn destination(chain: &Value) -> String {
    for filter in list(chain, "filters") {
        let config = &filter["typedConfig"];
        match text(filter, "name") {
            HTTP_FILTER => {
                let rds = text(&config["rds"], "routeConfigName");
                return match config["routeConfig"].is_object() {
                    true => inline_routes(&config["routeConfig"]),
                    false if !rds.is_empty() => format!("Route: {rds}"),
                    false => "HTTP".to_owned(),
                };
            }
            TCP_FILTER if !is_black_hole(filter) => return cluster(text(config, "cluster")),
            _ => {}
        }
    }
    "Non-HTTP/Non-TCP".to_owned()
}

/// A cluster. Those of Envoy's own names, such as `PassthroughCluster`, need no word before them.
fn cluster(name: &str) -> String {
    if name.contains("Cluster") { name.to_owned() } else { format!("Cluster: {name}") }
}

fn inline_routes(table: &Value) -> String {
    let hosts = list(table, "virtualHosts");
    if let [host] = hosts
        && is_any_domain(host)
        && let [route] = list(host, "routes")
        && route["match"]["prefix"] == "/"
        && let Some(name) = route["route"]["cluster"].as_str()
    {
        return cluster(name);
    }
    let described = hosts.iter().map(|host| {
        let paths: Vec<String> = list(host, "routes").iter().map(|route| condition(&route["match"])).collect();
        let domains: Vec<&str> = list(host, "domains").iter().filter_map(Value::as_str).collect();
        match is_any_domain(host) {
            true => paths.join(", "),
            false => format!("{} {}", domains.join("/"), paths.join(", ")),
        }
    });
    format!("Inline Route: {}", described.collect::<Vec<_>>().join("; "))
}

fn is_any_domain(host: &Value) -> bool {
    matches!(list(host, "domains"), [only] if only == "*")
}
