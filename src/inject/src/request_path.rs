//! Environment variables in the URL path of the webhook: `/inject/cluster/C/net/N` (W01).

use std::collections::BTreeMap;

/// The variable with the id of the cluster.
pub(crate) const CLUSTER_ID: &str = "ISTIO_META_CLUSTER_ID";
/// The variable with the network.
pub(crate) const NETWORK: &str = "ISTIO_META_NETWORK";
/// A slash in a value.
const SLASH: &str = "--slash--";
/// Separates variables in a former syntax.
const VARIABLE: &str = ":ENV:";

/// The environment variables of a path. A name without a value is ignored.
pub(crate) fn variables(path: &str) -> BTreeMap<String, String> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let Some(rest) = path.splitn(3, '/').nth(2) else { return BTreeMap::new() };
    let pairs: Vec<(String, String)> = if rest.starts_with(VARIABLE) {
        let pairs = rest.split(VARIABLE).filter_map(|pair| pair.split_once('=')).filter(|(name, _)| !name.is_empty());
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    } else {
        let parts: Vec<&str> = rest.split('/').collect();
        parts.as_chunks::<2>().0.iter().map(|[name, value]| ((*name).to_owned(), value.replace(SLASH, "/"))).collect()
    };
    let mut out = BTreeMap::new();
    for (name, value) in pairs {
        let variable = match name.as_str() {
            "cluster" => CLUSTER_ID.to_owned(),
            "net" => NETWORK.to_owned(),
            name => name.to_uppercase(),
        };
        if !variable.is_empty() {
            out.insert(variable, value);
        }
    }
    out
}
