//! Certificates that node proxies request for the pods on their node (P08).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{PoisonError, RwLock};

use sluice_auth::Caller;
use sluice_engine::Engine;
use sluice_graph::Handles;
use sluice_model::{Identity, ObjectKey, ParseIdentityError, Pod, Text};

/// The service accounts of the pods on each node, and the node proxies that may request certificates for them.
#[derive(Debug, Default)]
pub struct NodePods {
    /// Namespace and name of the service accounts of node proxies.
    trusted: BTreeSet<(Text, Text)>,
    index: RwLock<Index>,
}

/// The node, service account and UID of a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
struct PodPlacement {
    uid: Text,
    node: Text,
    service_account: Text,
}

#[derive(Debug, Default)]
struct Index {
    pods: BTreeMap<ObjectKey, PodPlacement>,
    /// Number of pods by cluster, node, namespace and service account.
    counts: BTreeMap<(Text, Text, Text, Text), usize>,
}

impl Index {
    fn set(&mut self, key: &ObjectKey, pod: Option<PodPlacement>) {
        let place = |pod: &PodPlacement| {
            (key.cluster.clone(), pod.node.clone(), key.namespace.clone(), pod.service_account.clone())
        };
        if let Some(pod) = &pod
            && !pod.node.is_empty()
        {
            *self.counts.entry(place(pod)).or_default() += 1;
        }
        let old = match pod {
            Some(pod) => self.pods.insert(key.clone(), pod),
            None => self.pods.remove(key),
        };
        if let Some(old) = old.filter(|old| !old.node.is_empty()) {
            let place = place(&old);
            let left = self.counts.get(&place).map_or(0, |count| count - 1);
            if left == 0 {
                self.counts.remove(&place);
            } else {
                self.counts.insert(place, left);
            }
        }
    }
}

/// The reason why a caller may not request a certificate of another identity. It is logged, and not sent to the caller.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ImpersonationError {
    /// No service account may request one.
    #[error("CA_TRUSTED_NODE_ACCOUNTS is not set")]
    Disabled,
    /// The credentials of the caller are not bound to a pod.
    #[error("the caller is not authenticated as a pod")]
    CallerIsNoPod,
    /// The caller has no identity, or several.
    #[error("the caller does not have exactly one identity")]
    CallerIsNoServiceAccount,
    /// The service account of the caller is not that of a node proxy.
    #[error("{namespace}/{name} is not in CA_TRUSTED_NODE_ACCOUNTS")]
    UntrustedAccount {
        /// Its namespace.
        namespace: Text,
        /// Its name.
        name: Text,
    },
    /// The requested identity is not a SPIFFE id of a service account.
    #[error("{wanted:?} {error}")]
    InvalidIdentity {
        /// The requested identity.
        wanted: String,
        /// What is wrong with it.
        error: ParseIdentityError,
    },
    /// The requested identity is in another trust domain than the caller.
    #[error("{0:?} is in another trust domain")]
    OtherTrustDomain(String),
    /// The pod of the caller does not exist, or is not read yet.
    #[error("there is no pod {0}")]
    UnknownPod(ObjectKey),
    /// A pod with the same name has replaced the pod of the caller.
    #[error("pod {0} has another UID than the caller: it was replaced")]
    ReplacedPod(ObjectKey),
    /// The pod of the caller has another service account.
    #[error("pod {0} has another service account than the caller")]
    OtherServiceAccount(ObjectKey),
    /// No pod with the requested identity is on the node of the caller, or it is not read yet.
    #[error("no pod of {wanted:?} is on node {node:?}")]
    NotOnNode {
        /// The requested identity.
        wanted: String,
        /// The node of the caller.
        node: Text,
    },
}

impl NodePods {
    /// An index without pods, for node proxies with these service accounts (namespace and name).
    #[must_use]
    pub fn new(trusted: BTreeSet<(Text, Text)>) -> Self {
        Self { trusted, index: RwLock::default() }
    }

    /// Follows the pods until the engine stops.
    pub async fn follow(&self, engine: Engine, handles: &Handles) {
        let mut feed = engine.feed().only(&handles.pods);
        while let Some(batch) = feed.next().await {
            let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
            for event in batch.events(&handles.pods) {
                index.set(&event.key, event.new.as_deref().map(placement));
            }
        }
    }

    /// Checks whether a caller may request a certificate of an identity.
    ///
    /// # Errors
    /// The reason why it may not.
    pub fn check(&self, caller: &Caller, wanted: &str) -> Result<Identity, ImpersonationError> {
        let pod = caller.pod.as_ref().ok_or(ImpersonationError::CallerIsNoPod)?;
        let [own] = caller.identities.as_slice() else {
            return Err(ImpersonationError::CallerIsNoServiceAccount);
        };
        let account = (own.namespace.clone(), own.service_account.clone());
        if !self.trusted.contains(&account) {
            return Err(ImpersonationError::UntrustedAccount { namespace: account.0, name: account.1 });
        }
        let identity: Identity =
            wanted.parse().map_err(|error| ImpersonationError::InvalidIdentity { wanted: wanted.to_owned(), error })?;
        if identity.trust_domain != own.trust_domain {
            return Err(ImpersonationError::OtherTrustDomain(wanted.to_owned()));
        }
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let key = ObjectKey::new(pod.cluster.clone(), pod.namespace.clone(), pod.name.clone());
        let placement = index.pods.get(&key).ok_or_else(|| ImpersonationError::UnknownPod(key.clone()))?;
        if placement.uid != pod.uid {
            return Err(ImpersonationError::ReplacedPod(key));
        }
        if placement.service_account != own.service_account {
            return Err(ImpersonationError::OtherServiceAccount(key));
        }
        let (cluster, node) = (pod.cluster.clone(), placement.node.clone());
        let place = (cluster, node, identity.namespace.clone(), identity.service_account.clone());
        if placement.node.is_empty() || !index.counts.contains_key(&place) {
            let node = placement.node.clone();
            return Err(ImpersonationError::NotOnNode { wanted: wanted.to_owned(), node });
        }
        Ok(identity)
    }
}

fn placement(pod: &Pod) -> PodPlacement {
    PodPlacement { uid: pod.uid.clone(), node: pod.node.clone(), service_account: pod.service_account.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_auth::PodName;

    fn key(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new("east", namespace, name)
    }

    fn pod(node: &str, account: &str, uid: &str) -> Option<PodPlacement> {
        Some(PodPlacement { uid: uid.into(), node: node.into(), service_account: account.into() })
    }

    fn caller(account: &str, uid: &str) -> Caller {
        let (namespace, name) = ("istio-system".into(), "ztunnel-1".into());
        Caller {
            authenticator: Some("token review"),
            identities: vec![Identity::new("td", "istio-system", account)],
            pod: Some(PodName { cluster: "east".into(), namespace, name, uid: uid.into() }),
            ..Caller::default()
        }
    }

    #[test]
    fn node_proxy_receives_certificates_only_for_pods_on_its_node() {
        let nodes = NodePods::new([("istio-system".into(), "ztunnel".into())].into());
        let set = |key: &ObjectKey, pod| nodes.index.write().expect("no panic").set(key, pod);
        set(&key("istio-system", "ztunnel-1"), pod("one", "ztunnel", "u1"));
        set(&key("shop", "cart-1"), pod("one", "cart", "u2"));
        set(&key("shop", "cart-2"), pod("one", "cart", "u3"));
        set(&key("bank", "vault-1"), pod("two", "vault", "u4"));
        let (cart, vault) = ("spiffe://td/ns/shop/sa/cart", "spiffe://td/ns/bank/sa/vault");
        let good = caller("ztunnel", "u1");
        assert_eq!(nodes.check(&good, cart), Ok(Identity::new("td", "shop", "cart")));
        let reject = |caller: &Caller, wanted: &str| nodes.check(caller, wanted).expect_err("rejected").to_string();
        assert_eq!(reject(&good, vault), format!("no pod of {vault:?} is on node \"one\""));
        assert!(reject(&good, "spiffe://other/ns/shop/sa/cart").contains("another trust domain"));
        assert!(reject(&good, "cart").contains("is not of the form"));
        assert!(reject(&caller("cart", "u1"), cart).contains("CA_TRUSTED_NODE_ACCOUNTS"));
        assert!(reject(&caller("ztunnel", "u9"), cart).contains("another UID"));
        assert!(reject(&Caller { pod: None, ..good.clone() }, cart).contains("not authenticated as a pod"));

        set(&key("shop", "cart-1"), None);
        assert!(nodes.check(&good, cart).is_ok(), "another pod of the service account is left");
        set(&key("shop", "cart-2"), pod("two", "cart", "u3"));
        assert!(nodes.check(&good, cart).is_err(), "the pod is on another node");
        set(&key("istio-system", "ztunnel-1"), pod("two", "other", "u1"));
        assert!(reject(&good, cart).contains("another service account"));
        assert_eq!(nodes.index.read().expect("no panic").counts.len(), 3);
    }
}
