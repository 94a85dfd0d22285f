//! Credentials of DestinationRules (N12): the proxies whose clusters may need Secrets, and what each is served.
//!
//! While Envoy waits for a Secret that is not served, it sends through the previous cluster, which may be in plaintext. So the
//! clusters of a proxy depend on which Secrets it is served. That follows from its identity, and not from its view: proxies
//! with equal rights and an equal view share a layer over the view. It contains only the clusters whose Secrets are not
//! served.

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps};
use sluice_model::{DestinationRule, ObjectKey, Proxy, ProxyKey, ProxyType, SecretReader, Text, View};

use crate::content_names::content_hash;
use crate::proxies::selected_labels::SelectedLabels;
use crate::traffic::secret_accounts::SecretAccount;
use crate::views::outbound_views;

/// The facts of a proxy that decide which Secrets it is served.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct CredentialAccess {
    /// The cluster whose Secrets are looked up first.
    pub(crate) cluster: Text,
    /// Namespace of its identity, whose Secrets it is served.
    pub(crate) namespace: Text,
    /// Whether it is served certificates. Root certificates are not secret.
    pub(crate) certificates: bool,
}

/// Proxies with the same access to Secrets and the same view of outbound clusters.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct CredentialClient {
    /// The Secrets that they are served.
    pub(crate) access: CredentialAccess,
    /// The view in which they see services and rules.
    pub(crate) sees_as: View,
    /// The view of their outbound clusters, if they get only the clusters that they send to.
    pub(crate) reach: Option<View>,
}

impl CredentialClient {
    /// The view of the clusters whose Secrets they are not served.
    pub(crate) fn view(&self) -> View {
        View::Workload(format!("credentials#{}", content_hash(self)).into())
    }
}

/// Namespaces of the clients of rules with credentials that select clients. The empty name is for rules without a selector,
/// which sidecars do not apply.
/// Key: namespace. From: `destination_rules`. Changes when: the first such rule is added or the last one removed.
/// Size: such namespaces. Rejects: none.
pub(crate) fn derive_credential_namespaces<'s>(
    rules: &Collection<'s, ObjectKey, DestinationRule>,
) -> Collection<'s, Text, ()> {
    let namespaces = rules.index("credential_namespaces/by-content", |_, rule| {
        let namespace = rule.workload_selector.as_ref().map(|_| rule.namespace.clone());
        rule.names_credentials().then(|| (namespace.unwrap_or_default(), ()))
    });
    namespaces.distinct("credential_namespaces")
}

/// Whether a proxy may have clusters with credentials, inside a `derive`.
#[derive(Clone, Copy)]
pub(crate) struct CredentialNamespaces(Dep<Text, ()>);

impl CredentialNamespaces {
    /// Declares the look-up.
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, namespaces: &Collection<'s, Text, ()>) -> Self {
        Self(deps.on(namespaces))
    }

    pub(crate) fn concern(self, cx: &Context, proxy: &Proxy) -> bool {
        let applies_all = matches!(proxy.proxy_type, ProxyType::Router | ProxyType::Waypoint);
        let applies_selecting = applies_all || (proxy.proxy_type == ProxyType::Sidecar && !proxy.grpc);
        let exist = |namespace: &Text| cx.get(&self.0, namespace).is_some();
        (applies_all && exist(&Text::default())) || (applies_selecting && exist(&proxy.namespace))
    }
}

/// Inputs of the derivation of clients.
pub(crate) struct CredentialInputs<'a, 's> {
    /// Connected proxies.
    pub(crate) proxies: &'a Collection<'s, ProxyKey, Proxy>,
    /// See [`derive_credential_namespaces`].
    pub(crate) namespaces: &'a Collection<'s, Text, ()>,
    /// The service account of each proxy that may be served Secrets.
    pub(crate) readers: &'a Collection<'s, ProxyKey, SecretAccount>,
    /// Whether service accounts may read Secrets, if that is reviewed.
    pub(crate) reviews: Option<&'a Collection<'s, SecretReader, bool>>,
    /// Labels of proxies that selectors mention: one record.
    pub(crate) selected_labels: &'a Collection<'s, (), SelectedLabels>,
    /// Views of routers and of waypoints that get only the clusters they send to.
    pub(crate) reach_views: [Option<&'a Collection<'s, ProxyKey, View>>; 2],
}

/// Proxies that may have clusters with credentials. A proxy without a verified identity is absent: it is served none.
///
/// A proxy whose rights are not reviewed yet may read: otherwise all clusters with client certificates would fail after the
/// control plane starts.
/// Key: `ProxyKey`. From: `proxies`, `credential_namespaces`, `secret_readers`, `secret_reviews`, `selected_labels`, `reach/views`.
/// Changes when: such a proxy connects or leaves, its rights are reviewed with another result, or rules select other labels of
/// it. Size: such proxies. Rejects: none.
pub(crate) fn derive_credential_clients<'s>(
    inputs: &CredentialInputs<'_, 's>,
) -> Collection<'s, ProxyKey, CredentialClient> {
    inputs.readers.derive("credential_clients", |deps| {
        let proxies = deps.on(inputs.proxies);
        let namespaces = CredentialNamespaces::on(deps, inputs.namespaces);
        let reviews = inputs.reviews.map(|reviews| deps.on(reviews));
        let labels = deps.on(inputs.selected_labels);
        let reach: Vec<_> = inputs.reach_views.into_iter().flatten().map(|views| deps.on(views)).collect();
        move |cx, key, account| {
            let proxy = cx.get(&proxies, key)?;
            if !namespaces.concern(cx, &proxy) {
                return None;
            }
            let review = |reader: &SecretReader| cx.get(reviews.as_ref()?, reader).map(|review| *review);
            let certificates = account.may_read(review).unwrap_or(true);
            let SecretReader { cluster, namespace, .. } = account.reader.clone();
            let access = CredentialAccess { cluster, namespace, certificates };
            let labels = cx.get(&labels, &()).map(|labels| labels.outbound(&proxy)).unwrap_or_default();
            let sees_as = outbound_views(&proxy, &labels).into_iter().next()?;
            let reach = reach.iter().find_map(|reach| cx.get(reach, key)).map(|view| (*view).clone());
            Some(CredentialClient { access, sees_as, reach })
        }
    })
}
