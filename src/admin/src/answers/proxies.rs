//! Connected proxies as people name them: `cart-7f.shop`, `deploy/cart.shop`, a node id.

use std::sync::Arc;

use sluice_model::{Proxy, ProxyKey, Text};

use super::names::{did_you_mean, similar};

/// Kinds of workloads in names of proxies. A node states the name of its workload without the kind.
const WORKLOAD_WORDS: &[&str] = &[
    "deploy",
    "deployment",
    "deployments",
    "sts",
    "statefulset",
    "statefulsets",
    "ds",
    "daemonset",
    "daemonsets",
    "job",
    "jobs",
    "workload",
    "workloads",
];

/// A name that names no proxy, or several pods with different names.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum ProxyError {
    /// No proxy with that name is connected here.
    #[error("no proxy {name:?} is connected to this instance{}", if .connected == &0 { "; no proxy is".to_owned() } else { did_you_mean(.similar) })]
    NotConnected {
        /// The name as given.
        name: String,
        /// Similar names of connected proxies.
        similar: Vec<String>,
        /// Number of connected proxies.
        connected: usize,
    },
    /// The name is the beginning of several names, or that of pods or workloads in several namespaces.
    #[error("{name:?} names several proxies: {}", .candidates.join(", "))]
    Ambiguous {
        /// The name as given.
        name: String,
        /// The proxies, not all if there are many.
        candidates: Vec<String>,
    },
}

/// The proxies of a name.
#[derive(Clone, Debug)]
pub(crate) struct FoundProxy {
    /// The first one.
    pub(crate) key: ProxyKey,
    pub(crate) proxy: Arc<Proxy>,
    /// Number of proxies of the workload.
    pub(crate) of: usize,
}

/// Candidates in an error.
const MAX_CANDIDATES: usize = 8;

/// Finds the proxy of a name among the connected ones: a node id, `pod.namespace`, the beginning of one pod's name with its
/// namespace, or `deploy/NAME` with or without `.NAMESPACE`, which is the first proxy of the workload.
pub(crate) fn find(
    connected: &[(ProxyKey, Arc<Proxy>)],
    name: &str,
    namespace: &str,
) -> Result<FoundProxy, ProxyError> {
    let not_connected = || {
        let names: Vec<String> = connected.iter().map(|(_, proxy)| pod_name(proxy)).collect();
        let similar = similar(name, names.iter().map(String::as_str));
        ProxyError::NotConnected { name: name.to_owned(), similar, connected: connected.len() }
    };
    let exact = |(key, proxy): &&(ProxyKey, Arc<Proxy>)| *key.0 == *name || pod_name(proxy) == name;
    // The last stream of a pod is the current one.
    if let Some((key, proxy)) = connected.iter().rev().find(exact) {
        return Ok(FoundProxy { key: key.clone(), proxy: proxy.clone(), of: 1 });
    }
    if let Some((word, workload)) = name.split_once('/') {
        if word == "pod" || word == "pods" || word == "po" {
            return find(connected, workload, namespace);
        }
        if !WORKLOAD_WORDS.contains(&word) {
            return Err(not_connected());
        }
        let is_of = |proxy: &Proxy| {
            let named = |text: &str| proxy.workload_name.as_str() == text;
            let in_namespace = namespace.is_empty() || proxy.namespace.as_str() == namespace;
            let with_namespace =
                workload.rsplit_once('.').is_some_and(|(workload, of)| named(workload) && *proxy.namespace == *of);
            (named(workload) && in_namespace) || with_namespace
        };
        return one_workload(connected.iter().filter(|(_, proxy)| is_of(proxy)).collect(), name, not_connected);
    }
    let (beginning, of) = match name.rsplit_once('.') {
        Some((beginning, of)) => (beginning, of),
        None => (name, namespace),
    };
    let begins = |proxy: &Proxy| {
        proxy.name.starts_with(beginning) && !beginning.is_empty() && (of.is_empty() || *proxy.namespace == *of)
    };
    let found: Vec<_> = connected.iter().filter(|(_, proxy)| begins(proxy)).collect();
    let mut pods: Vec<String> = found.iter().map(|(_, proxy)| pod_name(proxy)).collect();
    pods.sort();
    pods.dedup();
    match (found.last(), pods.len()) {
        (Some((key, proxy)), 1) => Ok(FoundProxy { key: key.clone(), proxy: proxy.clone(), of: 1 }),
        (Some(_), _) => {
            pods.truncate(MAX_CANDIDATES);
            Err(ProxyError::Ambiguous { name: name.to_owned(), candidates: pods })
        }
        (None, _) => Err(not_connected()),
    }
}

/// The first proxy of a workload, if all are in one namespace.
fn one_workload(
    mut found: Vec<&(ProxyKey, Arc<Proxy>)>,
    name: &str,
    not_connected: impl Fn() -> ProxyError,
) -> Result<FoundProxy, ProxyError> {
    found.sort_by(|one, other| one.0.cmp(&other.0));
    let mut namespaces: Vec<&Text> = found.iter().map(|(_, proxy)| &proxy.namespace).collect();
    namespaces.sort();
    namespaces.dedup();
    match (found.first(), namespaces.len()) {
        (Some((key, proxy)), 1) => Ok(FoundProxy { key: key.clone(), proxy: proxy.clone(), of: found.len() }),
        (Some(_), _) => {
            let candidates = namespaces.iter().take(MAX_CANDIDATES).map(|namespace| format!("{name}.{namespace}"));
            Err(ProxyError::Ambiguous { name: name.to_owned(), candidates: candidates.collect() })
        }
        (None, _) => Err(not_connected()),
    }
}

/// `pod.namespace` of a proxy, from its node id where the node states no names.
pub(crate) fn pod_name(proxy: &Proxy) -> String {
    match proxy.id.split('~').nth(2) {
        Some(name) => name.to_owned(),
        None => format!("{}.{}", proxy.name, proxy.namespace),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected() -> Vec<(ProxyKey, Arc<Proxy>)> {
        let proxy = |pod: &str, namespace: &str, workload: &str| {
            let id: Text = format!("sidecar~10.0.0.1~{pod}.{namespace}~{namespace}.svc.cluster.local").into();
            let proxy = Proxy {
                id: id.clone(),
                name: pod.into(),
                namespace: namespace.into(),
                workload_name: workload.into(),
                ..Proxy::default()
            };
            (ProxyKey(id), Arc::new(proxy))
        };
        vec![
            proxy("cart-7f-b", "shop", "cart"),
            proxy("cart-7f-a", "shop", "cart"),
            proxy("cart-9c", "bank", "cart"),
            proxy("till-1", "shop", "till"),
        ]
    }

    fn found(name: &str, namespace: &str) -> Result<(String, usize), ProxyError> {
        find(&connected(), name, namespace).map(|found| (pod_name(&found.proxy), found.of))
    }

    #[test]
    fn pods_are_found_by_name_beginning_and_node_id() {
        let pod = |name: &str| Ok((name.to_owned(), 1));
        assert_eq!(found("till-1.shop", ""), pod("till-1.shop"));
        assert_eq!(found("sidecar~10.0.0.1~till-1.shop~shop.svc.cluster.local", ""), pod("till-1.shop"));
        assert_eq!(found("till.shop", ""), pod("till-1.shop"));
        assert_eq!(found("pod/till-1", "shop"), pod("till-1.shop"));
        assert_eq!(found("cart-9", ""), pod("cart-9c.bank"));
        let error = found("cart-7f.shop", "").expect_err("two pods").to_string();
        assert_eq!(error, "\"cart-7f.shop\" names several proxies: cart-7f-a.shop, cart-7f-b.shop");
    }

    #[test]
    fn workloads_stand_for_their_first_proxy() {
        assert_eq!(found("deploy/cart.shop", ""), Ok(("cart-7f-a.shop".to_owned(), 2)));
        assert_eq!(found("deployment/cart", "bank"), Ok(("cart-9c.bank".to_owned(), 1)));
        let error = found("deploy/cart", "").expect_err("two namespaces").to_string();
        assert_eq!(error, "\"deploy/cart\" names several proxies: deploy/cart.bank, deploy/cart.shop");
    }

    #[test]
    fn unknown_proxies_are_reported_with_similar_names() {
        let error = found("tilt-1.shop", "").expect_err("unknown").to_string();
        assert_eq!(error, "no proxy \"tilt-1.shop\" is connected to this instance; did you mean \"till-1.shop\"?");
        assert!(matches!(found("role/cart.shop", ""), Err(ProxyError::NotConnected { .. })));
        let error = find(&[], "a.b", "").expect_err("none").to_string();
        assert_eq!(error, "no proxy \"a.b\" is connected to this instance; no proxy is");
    }
}
