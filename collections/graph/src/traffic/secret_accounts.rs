//! The service accounts of proxies that may be served Secrets, and the clusters in which these proxies may run (P17).
//!
//! A token that a cluster has reviewed, or whose keys are those of a cluster, proves the cluster of its proxy. A client
//! certificate proves a service account, and service accounts of the same name in several clusters have the same identity. The
//! cluster that such a proxy claims counts only if it has a pod of the service account. Every cluster with such a pod has to
//! permit the service account to read Secrets, because the proxy may run in any of them.

use std::collections::BTreeSet;

use serde::Serialize;
use sluice_engine::{Collection, Context, Deps, Index, IndexDep};
use sluice_model::{Identity, ObjectKey, Pod, Proxy, SecretReader, Text};

/// The service account of a proxy that may be served Secrets.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct SecretAccount {
    /// The service account in the cluster whose Secrets are looked up first.
    pub(crate) reader: SecretReader,
    /// The other clusters in which the proxy may run; none if its cluster is proven.
    pub(crate) other_clusters: BTreeSet<Text>,
}

impl SecretAccount {
    /// The service account in each cluster that has to permit it to read Secrets.
    pub(crate) fn readers(&self) -> impl Iterator<Item = SecretReader> {
        let other = |cluster: &Text| SecretReader { cluster: cluster.clone(), ..self.reader.clone() };
        std::iter::once(self.reader.clone()).chain(self.other_clusters.iter().map(other))
    }

    /// Whether all clusters permit it to read Secrets; `None` while none of them forbids it and one is not reviewed.
    pub(crate) fn may_read(&self, review: impl Fn(&SecretReader) -> Option<bool>) -> Option<bool> {
        let reviews: Vec<Option<bool>> = self.readers().map(|reader| review(&reader)).collect();
        if reviews.contains(&Some(false)) {
            Some(false)
        } else {
            reviews.into_iter().collect::<Option<Vec<_>>>().map(|_| true)
        }
    }
}

/// Cluster, namespace and name of a service account.
type AccountKey = (Text, Text, Text);

/// The service accounts that pods have, by namespace and name.
pub(crate) type PodAccounts<'s> = Index<'s, (Text, Text), AccountKey, ()>;

/// The service accounts that pods have.
/// Key: cluster, namespace and name. From: `pods`, of all namespaces. Changes when: the first pod of a service account is
/// added, or the last one is removed. Size: service accounts with pods. Rejects: none.
pub(crate) fn derive_pod_accounts<'s>(pods: &Collection<'s, ObjectKey, Pod>) -> PodAccounts<'s> {
    let accounts = pods.index("pod_accounts/of-pods", |key, pod| {
        [((key.cluster.clone(), key.namespace.clone(), pod.service_account.clone()), ())]
    });
    let accounts = accounts.distinct("pod_accounts");
    accounts.index("pod_accounts/by-name", |(_, namespace, name), ()| [((namespace.clone(), name.clone()), ())])
}

/// Looks up the service account of a proxy, inside a `derive`.
#[derive(Clone)]
pub(crate) struct AccountLookup {
    accounts: IndexDep<(Text, Text), AccountKey, ()>,
    /// Id of the cluster of the control plane.
    own: Text,
}

impl AccountLookup {
    /// Declares the look-up.
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, accounts: &PodAccounts<'s>, own: &Text) -> Self {
        Self { accounts: deps.by(accounts), own: own.clone() }
    }

    /// The service account of a proxy; `None` if the identity of the proxy is not verified.
    pub(crate) fn get(&self, cx: &Context, proxy: &Proxy) -> Option<SecretAccount> {
        let Identity { namespace, service_account, .. } = proxy.identity.clone()?;
        let (cluster, other_clusters) = match &proxy.proven_cluster {
            Some(proven) => (proven.clone(), BTreeSet::new()),
            None => {
                let rows = cx.by(&self.accounts, &(namespace.clone(), service_account.clone()));
                let mut with_pods: BTreeSet<Text> = rows.into_iter().map(|((cluster, ..), _)| cluster).collect();
                let cluster = with_pods.take(&proxy.cluster).unwrap_or_else(|| self.own.clone());
                with_pods.remove(&cluster);
                (cluster, with_pods)
            }
        };
        Some(SecretAccount { reader: SecretReader { cluster, namespace, service_account }, other_clusters })
    }
}
