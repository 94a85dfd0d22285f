//! Policies of node proxies, and the policies of each workload (A04).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_envoy::ztunnel::{
    InheritedModes, STRICT_POLICY, build_authorization, build_peer_authorization, build_strict_authorization,
    build_waypoint_authorization, peer_policy_name,
};
use sluice_model::{
    AmbientService, Labels, ObjectKey, PeerAuthentication, PeerMtls, Resource, Text, Waypoint, match_labels,
};

use super::waypoints::{WaypointReads, Waypoints};
use super::{AmbientInputs, AmbientSettings, LabelKey, first_labels, label_keys};
use crate::options::AmbientOptions;
use crate::registry::workloads::selector_key;

/// Policies, and the indexes by which those of a workload are found.
pub(super) struct AmbientPolicies<'s> {
    /// All policies that are sent, by name.
    pub(super) all: Collection<'s, Text, Resource>,
    by_label: Index<'s, LabelKey, ObjectKey, Labels>,
    labels: Collection<'s, (), BTreeSet<Text>>,
    peers: Index<'s, Text, ObjectKey, PeerAuthentication>,
    allows_waypoints: bool,
}

/// An AuthorizationPolicy that node proxies enforce.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct EnforcedPolicy {
    selector: Labels,
    message: Resource,
}

/// Policies by name (`NAMESPACE/NAME`): the parts of AuthorizationPolicies that apply to connections;
/// PeerAuthentications with settings for ports; if there is any PeerAuthentication, the policy for workloads that
/// accept only mutual TLS; and, if enabled, one for each waypoint.
/// Key: the name. From: `authorization_policies`, `peer_authentications`, `waypoints`, `mesh_config`.
/// Changes when: the policy does; for a PeerAuthentication also those of its namespace and the mesh; for a waypoint
/// also the service accounts of its instances. Size: policies. Rejects: none.
pub(super) fn derive_policies<'s>(
    inputs: &AmbientInputs<'_, 's>,
    settings: &Collection<'s, (), AmbientSettings>,
    waypoints: &Waypoints<'s>,
    switches: AmbientOptions,
) -> AmbientPolicies<'s> {
    let root = settings.map("ambient_root_namespace", |(), settings| settings.root_namespace.clone());
    let authorization = inputs.objects.authorization_policies.derive("ambient_policies/authorization", |deps| {
        let root = deps.on(&root);
        move |cx, _, policy| {
            let message = build_authorization(policy, &cx.get(&root, &())?, switches.dry_run_policies)?;
            Some(EnforcedPolicy { selector: policy.attachment.selector.clone(), message: Resource::Encoded(message) })
        }
    });
    let by_label = authorization.index("ambient_policies/by-label", |key, policy| {
        let selects = !policy.selector.is_empty();
        selects.then(|| (selector_key(&key.namespace, &policy.selector), policy.selector.clone()))
    });
    let labels = first_labels("ambient_policies/labels", &by_label.distinct("ambient_policies/selectors"));
    let peers = inputs
        .objects
        .peer_authentications
        .index("ambient_policies/peers", |key, policy| [(key.namespace.clone(), policy.clone())]);
    let enforced = authorization.flat_map("ambient_policies/enforced", |key, policy| {
        [(name(&key.namespace, &key.name), policy.message.clone())]
    });
    let by_port = inputs.objects.peer_authentications.derive_many("ambient_policies/by-port", |deps| {
        let (root, peers) = (deps.on(&root), deps.by(&peers));
        move |cx, key, policy| {
            let Some(root) = cx.get(&root, &()) else { return Vec::new() };
            let own = !policy.selector.is_empty() && !policy.selector_unreadable && !policy.ports.is_empty();
            if key.namespace == *root || !own {
                return Vec::new();
            }
            let wide =
                |namespace: &Text| PeerAuthentications::of(cx, &peers, namespace).wide().map(|policy| policy.mtls);
            let above = InheritedModes { namespace: wide(&key.namespace), mesh: wide(&root) };
            let message = build_peer_authorization(policy, above);
            let row = |message| (name(&key.namespace, &peer_policy_name(&key.name)), Resource::Encoded(message));
            message.map(row).into_iter().collect()
        }
    });
    let any = inputs.objects.peer_authentications.index("ambient_policies/any-peer", |_, _| [((), ())]);
    let strict = any.distinct("ambient_policies/has-peers").derive_many("ambient_policies/strict", |deps| {
        let root = deps.on(&root);
        move |cx, (), ()| {
            let Some(root) = cx.get(&root, &()) else { return Vec::new() };
            vec![(name(&root, STRICT_POLICY), Resource::Encoded(build_strict_authorization(&root)))]
        }
    });
    let trust_domain = settings.map("ambient_trust_domain", |(), settings| settings.trust_domain.clone());
    let implied = waypoints.local().derive_many("ambient_policies/waypoints", |deps| {
        let trust_domain = deps.on(&trust_domain);
        move |cx, _, waypoint| {
            let Some(trust_domain) = cx.get(&trust_domain, &()) else { return Vec::new() };
            if !switches.allows_waypoints || waypoint.accounts.is_empty() {
                return Vec::new();
            }
            let namespace = &waypoint.key.namespace;
            let principal = |account: &Text| format!("{trust_domain}/ns/{namespace}/sa/{account}").into();
            let principals: Vec<Text> = waypoint.accounts.iter().map(principal).collect();
            let policy = waypoint_policy(waypoint);
            let message = build_waypoint_authorization(&policy, namespace, &principals);
            vec![(name(namespace, &policy), Resource::Encoded(message))]
        }
    });
    let all = enforced.union("ambient_policies", &[by_port, strict, implied]);
    AmbientPolicies { all, by_label, labels, peers, allows_waypoints: switches.allows_waypoints }
}

/// The name of a policy as workloads refer to it.
fn name(namespace: &str, name: &str) -> Text {
    format!("{namespace}/{name}").into()
}

/// Names of objects have no `_`.
fn waypoint_policy(waypoint: &Waypoint) -> String {
    format!("istio_allow_waypoint_{}_{}", waypoint.key.namespace, waypoint.key.name)
}

/// Looks up policies, inside a `derive`.
pub(super) struct PolicyReads {
    by_label: IndexDep<LabelKey, ObjectKey, Labels>,
    labels: Dep<(), BTreeSet<Text>>,
    peers: IndexDep<Text, ObjectKey, PeerAuthentication>,
    allows_waypoints: bool,
}

impl PolicyReads {
    pub(super) fn on<'s>(deps: &mut Deps<'s>, policies: &AmbientPolicies<'s>) -> Self {
        Self {
            by_label: deps.by(&policies.by_label),
            labels: deps.on(&policies.labels),
            peers: deps.by(&policies.peers),
            allows_waypoints: policies.allows_waypoints,
        }
    }

    /// Names of the policies for a workload with these labels. Those for a whole namespace or the mesh need no
    /// reference.
    pub(super) fn of_workload(&self, cx: &Context, root: &Text, namespace: &Text, labels: &Labels) -> Vec<Text> {
        let mut names = BTreeSet::new();
        let elsewhere = Some(root).filter(|root| *root != namespace);
        for namespace in [Some(namespace), elsewhere].into_iter().flatten() {
            for at in label_keys(cx, &self.labels, namespace, labels) {
                let found = cx.by(&self.by_label, &at).into_iter();
                let found = found.filter(|(_, selector)| match_labels(selector, labels));
                names.extend(found.map(|(key, _)| name(&key.namespace, &key.name)));
            }
        }
        let own = PeerAuthentications::of(cx, &self.peers, namespace);
        let mesh = elsewhere.map(|root| PeerAuthentications::of(cx, &self.peers, root));
        let may_require = own.may_require(labels) || mesh.as_ref().is_some_and(|mesh| mesh.may_require(labels));
        let peer = match &mesh {
            Some(mesh) => peer_policy(root, mesh.wide(), own.wide(), own.selecting(labels)),
            None => peer_policy(root, own.wide(), None, None),
        };
        let strict = may_require.then(|| name(root, STRICT_POLICY)).filter(|strict| peer.as_ref() != Some(strict));
        names.into_iter().chain(peer).chain(strict).collect()
    }

    /// Names of the policies that allow the waypoints through which the workload is reached.
    pub(super) fn of_waypoints<'a>(
        &self,
        cx: &Context,
        waypoints: &WaypointReads,
        own: Option<&Arc<Waypoint>>,
        services: impl Iterator<Item = &'a AmbientService>,
    ) -> Vec<Text> {
        if !self.allows_waypoints {
            return Vec::new();
        }
        let own_key = own.map(|own| &own.key);
        let keys: BTreeSet<&ObjectKey> = services
            .filter_map(|service| service.waypoints.waypoint.as_ref())
            .filter(|key| Some(*key) != own_key)
            .collect();
        let others: Vec<Arc<Waypoint>> = keys.into_iter().filter_map(|key| waypoints.get(cx, key)).collect();
        let all = others.iter().chain(own).filter(|waypoint| !waypoint.accounts.is_empty());
        all.map(|waypoint| name(&waypoint.key.namespace, &waypoint_policy(waypoint))).collect()
    }
}

/// The PeerAuthentications of a namespace, the oldest first.
struct PeerAuthentications(Vec<Arc<PeerAuthentication>>);

impl PeerAuthentications {
    fn of(cx: &Context, peers: &IndexDep<Text, ObjectKey, PeerAuthentication>, namespace: &Text) -> Self {
        let mut policies: Vec<_> = cx.by(peers, namespace).into_iter().map(|(_, policy)| policy).collect();
        policies.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
        Self(policies)
    }

    /// The policy for the whole namespace.
    fn wide(&self) -> Option<&PeerAuthentication> {
        let mut all = self.0.iter().map(AsRef::as_ref);
        all.find(|policy| policy.selector.is_empty() && !policy.selector_unreadable)
    }

    /// Whether a policy whose selector cannot be read may require mutual TLS of workloads with these labels. It is then
    /// required on all ports.
    fn may_require(&self, labels: &Labels) -> bool {
        let mut lost =
            self.0.iter().filter(|policy| policy.selector_unreadable && match_labels(&policy.selector, labels));
        lost.any(|policy| {
            policy.mtls == PeerMtls::Strict || policy.ports.values().any(|mode| *mode == PeerMtls::Strict)
        })
    }

    /// The policy for workloads with these labels.
    fn selecting(&self, labels: &Labels) -> Option<&PeerAuthentication> {
        let mut all = self.0.iter().map(AsRef::as_ref);
        all.find(|policy| {
            !policy.selector.is_empty() && !policy.selector_unreadable && match_labels(&policy.selector, labels)
        })
    }
}

/// The policy that enforces the PeerAuthentications of the mesh, the namespace and the workload.
fn peer_policy(
    root: &str,
    mesh: Option<&PeerAuthentication>,
    namespace: Option<&PeerAuthentication>,
    workload: Option<&PeerAuthentication>,
) -> Option<Text> {
    let declared =
        |policy: Option<&PeerAuthentication>| policy.map(|policy| policy.mtls).filter(|mtls| *mtls != PeerMtls::Unset);
    let above = declared(namespace).or_else(|| declared(mesh));
    let strict = declared(workload).or(above) == Some(PeerMtls::Strict);
    let exception = workload.filter(|policy| {
        let mut ports = policy.ports.values();
        match (strict, policy.mtls) {
            // Without a mode of the workload, a port that accepts only plain text follows the mode of the namespace or
            // mesh.
            (true, PeerMtls::Unset) => ports.any(|mode| *mode == PeerMtls::Permissive),
            (true, _) => ports.any(|mode| matches!(mode, PeerMtls::Permissive | PeerMtls::Disable)),
            (false, _) => ports.any(|mode| *mode == PeerMtls::Strict),
        }
    });
    match exception {
        Some(policy) => Some(name(&policy.namespace, &peer_policy_name(&policy.name))),
        None => strict.then(|| name(root, STRICT_POLICY)),
    }
}
