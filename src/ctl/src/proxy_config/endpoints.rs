//! The tables of endpoints: as Envoy has them, with their health, and as the control plane sent them, with their locality.

use serde_json::{Value, json};

use super::args::Filter;
use super::clusters::ClusterName;
use crate::answer_output::{list, text};

pub(super) const HEALTH_TITLES: [&str; 4] = ["ENDPOINT", "STATUS", "OUTLIER CHECK", "CLUSTER"];
pub(super) const LOCALITY_TITLES: [&str; 4] = ["NAME", "STATUS", "LOCALITY", "CLUSTER"];

/// The health of an endpoint that has none.
const UNKNOWN: &str = "UNKNOWN";

/// The selected endpoints of load assignments, without assignments that have none.
pub(super) fn select(assignments: &[&Value], filter: &Filter) -> Vec<Value> {
    let mut selected = Vec::new();
    for assignment in assignments {
        let cluster = text(assignment, "clusterName");
        let mut assignment = (*assignment).clone();
        let mut count = 0;
        for locality in assignment["endpoints"].as_array_mut().into_iter().flatten() {
            if let Some(endpoints) = locality["lbEndpoints"].as_array_mut() {
                endpoints.retain(|endpoint| {
                    let address = &endpoint["endpoint"]["address"];
                    let health = endpoint["healthStatus"].as_str().unwrap_or(UNKNOWN);
                    is_selected(address, cluster, health, filter)
                });
                count += endpoints.len();
            }
        }
        if count > 0 {
            selected.push(assignment);
        }
    }
    selected
        .sort_by(|a, b| ClusterName::parse(text(a, "clusterName")).cmp(&ClusterName::parse(text(b, "clusterName"))));
    selected
}

/// Cells of the endpoints of a load assignment.
pub(super) fn locality_rows(assignment: &Value, prefix: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for locality in list(assignment, "endpoints") {
        let place = ["region", "zone", "subZone"].map(|part| text(&locality["locality"], part));
        let place = place.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
        for endpoint in list(locality, "lbEndpoints") {
            let host = &endpoint["endpoint"];
            let more = list(host, "additionalAddresses").iter().map(|it| address_and_port(&it["address"]));
            let addresses: Vec<String> = std::iter::once(address_and_port(&host["address"])).chain(more).collect();
            rows.push(vec![
                format!("{prefix}{}", addresses.join(",")),
                endpoint["healthStatus"].as_str().unwrap_or(UNKNOWN).to_owned(),
                place.clone(),
                text(assignment, "clusterName").to_owned(),
            ]);
        }
    }
    rows
}

/// The clusters of `/clusters?format=json` of Envoy with a selected endpoint.
pub(super) fn select_clusters(clusters: &Value, filter: &Filter) -> Value {
    let has_selected =
        |cluster: &&Value| list(cluster, "host_statuses").iter().any(|host| is_host(host, cluster, filter));
    list(clusters, "cluster_statuses").iter().filter(has_selected).cloned().collect()
}

/// Cells of the endpoints of `/clusters?format=json` of Envoy.
pub(super) fn health_rows(clusters: &Value, filter: &Filter) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for cluster in list(clusters, "cluster_statuses") {
        for host in list(cluster, "host_statuses").iter().filter(|host| is_host(host, cluster, filter)) {
            let address = from_envoy(&host["address"]);
            let check = if host["health_status"]["failed_outlier_check"] == true { "FAILED" } else { "OK" };
            let cells = [
                address_and_port(&address),
                health(host).to_owned(),
                check.to_owned(),
                text(cluster, "name").to_owned(),
            ];
            rows.push((ip(&address), port(&address), cells));
        }
    }
    rows.sort();
    rows.into_iter().map(|(_, _, cells)| cells.to_vec()).collect()
}

fn is_host(host: &Value, cluster: &Value, filter: &Filter) -> bool {
    is_selected(&from_envoy(&host["address"]), text(cluster, "name"), health(host), filter)
}

fn health(host: &Value) -> &str {
    host["health_status"]["eds_health_status"].as_str().unwrap_or(UNKNOWN)
}

/// An address of Envoy's admin interface, with the names of JSON.
fn from_envoy(address: &Value) -> Value {
    match address.get("socket_address") {
        Some(socket) => json!({"socketAddress": {"address": socket["address"], "portValue": socket["port_value"]}}),
        None => json!({
            "pipe": address["pipe"],
            "envoyInternalAddress": {
                "serverListenerName": address["envoy_internal_address"]["server_listener_name"],
                "endpointId": address["envoy_internal_address"]["endpoint_id"],
            },
        }),
    }
}

fn is_selected(address: &Value, cluster: &str, health: &str, filter: &Filter) -> bool {
    let is = |wanted: &Option<String>, value: &str| wanted.as_deref().is_none_or(|it| it.eq_ignore_ascii_case(value));
    let is_address = is(&filter.address, &ip(address)) || is(&filter.address, &address_and_port(address));
    let is_port = filter.port.is_none_or(|wanted| port(address) == u64::from(wanted));
    is_address && is_port && is(&filter.cluster, cluster) && is(&filter.status, health)
}

fn port(address: &Value) -> u64 {
    address["socketAddress"]["portValue"].as_u64().unwrap_or_default()
}

/// The address without its port.
fn ip(address: &Value) -> String {
    if let Some(ip) = address["socketAddress"]["address"].as_str() {
        return ip.to_owned();
    }
    if let Some(path) = address["pipe"]["path"].as_str() {
        return format!("unix://{path}");
    }
    let internal = &address["envoyInternalAddress"];
    match internal["serverListenerName"].as_str() {
        Some(listener) => format!("envoy://{listener}/{}", text(internal, "endpointId")),
        None => "unknown".to_owned(),
    }
}

fn address_and_port(address: &Value) -> String {
    match port(address) {
        0 => ip(address),
        port => format!("{}:{port}", ip(address)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clusters() -> Value {
        json!({"cluster_statuses": [
            {"name": "outbound|80||b", "host_statuses": [
                {"address": {"socket_address": {"address": "10.0.0.2", "port_value": 80}}, "health_status": {"eds_health_status": "HEALTHY"}},
                {"address": {"socket_address": {"address": "10.0.0.1", "port_value": 8080}},
                 "health_status": {"eds_health_status": "UNHEALTHY", "failed_outlier_check": true}},
            ]},
            {"name": "agent", "host_statuses": [{"address": {"pipe": {"path": "./etc/XDS"}}, "health_status": {"eds_health_status": "HEALTHY"}}]},
        ]})
    }

    #[test]
    fn endpoints_of_envoy_have_health_and_are_sorted_by_address() {
        let rows = health_rows(&clusters(), &Filter::default());
        assert_eq!(
            rows,
            [
                ["10.0.0.1:8080", "UNHEALTHY", "FAILED", "outbound|80||b"],
                ["10.0.0.2:80", "HEALTHY", "OK", "outbound|80||b"],
                ["unix://./etc/XDS", "HEALTHY", "OK", "agent"],
            ]
        );
    }

    #[test]
    fn endpoints_are_selected_by_health_address_port_and_cluster() {
        let some = |text: &str| Some(text.to_owned());
        for (filter, count) in [
            (Filter { status: some("unhealthy"), ..Filter::default() }, 1),
            (Filter { address: some("10.0.0.2"), ..Filter::default() }, 1),
            (Filter { port: Some(8080), ..Filter::default() }, 1),
            (Filter { cluster: some("outbound|80||b"), ..Filter::default() }, 2),
            (Filter { cluster: some("outbound|80||b"), status: some("draining"), ..Filter::default() }, 0),
        ] {
            assert_eq!(health_rows(&clusters(), &filter).len(), count, "{filter:?}");
        }
    }
}
