//! The canonical form of a dump: protobuf JSON with every `Any` expanded, and with sorted lists where the order has no
//! meaning.

use serde_json::Value;

/// Sorts the lists in an expanded resource whose order has no meaning.
pub fn canonicalize(resource: &mut Value) {
    if let Some(table) = name_table(resource) {
        for info in table.values_mut() {
            sort_by_text(info.get_mut("ips"));
        }
    }
    let is_assignment = type_of(resource).ends_with("ClusterLoadAssignment");
    visit(resource, is_assignment);
}

/// Brings a dump into canonical form: each resource, and their order.
pub(crate) fn canonical_dump(mut resources: Vec<Value>) -> Vec<Value> {
    for resource in &mut resources {
        canonicalize(resource);
    }
    let mut keyed: Vec<(String, String, Value)> =
        resources.into_iter().map(|r| (name_of(&r), sorted_text(&r), r)).collect();
    keyed.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    keyed.into_iter().map(|(_, _, resource)| resource).collect()
}

/// The name of a resource; empty if it has none.
pub fn name_of(resource: &Value) -> String {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let kind = type_of(resource);
    if kind.ends_with("ClusterLoadAssignment") {
        text(resource, "clusterName")
    } else if kind.ends_with("istio.workload.Address") {
        match resource.get("workload") {
            Some(workload) => text(workload, "uid"),
            None => format!("{}/{}", text(&resource["service"], "namespace"), text(&resource["service"], "hostname")),
        }
    } else if kind.ends_with("istio.workload.Workload") {
        text(resource, "uid")
    } else if kind.ends_with("istio.security.Authorization") {
        format!("{}/{}", text(resource, "namespace"), text(resource, "name"))
    } else {
        text(resource, "name")
    }
}

/// Compact JSON with sorted keys.
pub(crate) fn sorted_text(value: &Value) -> String {
    let mut out = String::new();
    write_sorted(value, &mut out);
    out
}

fn write_sorted(value: &Value, out: &mut String) {
    match value {
        Value::Array(elements) => {
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_sorted(element, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort();
            out.push('{');
            for (index, name) in names.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push_str(&Value::String(name.clone()).to_string());
                out.push(':');
                write_sorted(&fields[name], out);
            }
            out.push('}');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

fn type_of(resource: &Value) -> &str {
    resource["@type"].as_str().unwrap_or_default()
}

fn name_table(resource: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    if !type_of(resource).ends_with("nds.v1.NameTable") {
        return None;
    }
    resource.get_mut("table")?.as_object_mut()
}

fn visit(value: &mut Value, is_assignment: bool) {
    match value {
        Value::Array(elements) => elements.iter_mut().for_each(|element| visit(element, false)),
        Value::Object(fields) => {
            for (name, inner) in fields.iter_mut() {
                visit(inner, name == "loadAssignment");
                match name.as_str() {
                    "lbEndpoints" => sort_by(inner, |e| vec![text_at(&e["endpoint"], "address"), sorted_text(e)]),
                    "virtualHosts" => sort_by(inner, |h| vec![plain(h, "name"), sorted_text(h)]),
                    "domains" | "queryParameters" => sort_by_text(Some(inner)),
                    "filterChains" => {
                        sort_by(inner, |c| vec![plain(c, "name"), text_at(c, "filterChainMatch"), sorted_text(c)]);
                    }
                    "filterChainMatch" => sort_match(inner),
                    _ => {}
                }
            }
            if is_assignment && let Some(localities) = fields.get_mut("endpoints") {
                sort_by(localities, |l| vec![text_at(l, "locality"), l["priority"].to_string(), sorted_text(l)]);
            }
        }
        _ => {}
    }
}

fn sort_match(value: &mut Value) {
    for list in [
        "serverNames",
        "applicationProtocols",
        "prefixRanges",
        "sourcePrefixRanges",
        "directSourcePrefixRanges",
        "sourcePorts",
    ] {
        sort_by_text(value.get_mut(list));
    }
}

fn plain(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn text_at(value: &Value, key: &str) -> String {
    value.get(key).map(sorted_text).unwrap_or_default()
}

fn sort_by_text(list: Option<&mut Value>) {
    if let Some(list) = list {
        sort_by(list, |element| vec![sorted_text(element)]);
    }
}

fn sort_by(list: &mut Value, key: impl FnMut(&Value) -> Vec<String>) {
    if let Value::Array(elements) = list {
        elements.sort_by_cached_key(key);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn order_without_meaning_is_ignored() {
        let mut route = json!({
            "@type": "x/envoy.config.route.v3.RouteConfiguration",
            "virtualHosts": [
                {"name": "b", "domains": ["z", "a"], "routes": [{"name": "2"}, {"name": "1"}]},
                {"name": "a"},
            ],
        });
        canonicalize(&mut route);
        let hosts = &route["virtualHosts"];
        assert_eq!(hosts[0]["name"], "a");
        assert_eq!(hosts[1]["domains"], json!(["a", "z"]));
        assert_eq!(hosts[1]["routes"][0]["name"], "2", "routes keep their order");
    }

    #[test]
    fn resources_are_ordered_by_name_then_text() {
        let dump =
            canonical_dump(vec![json!({"name": "b"}), json!({"name": "a", "x": 2}), json!({"name": "a", "x": 1})]);
        assert_eq!(Value::Array(dump), json!([{"name": "a", "x": 1}, {"name": "a", "x": 2}, {"name": "b"}]));
    }
}
