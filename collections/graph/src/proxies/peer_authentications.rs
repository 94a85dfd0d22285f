//! PeerAuthentications: the mutual TLS mode of workloads (P14).

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_engine::{Collection, Context, Deps, Index, IndexDep};
use sluice_envoy::listener::{MtlsMode, PeerPolicy};
use sluice_model::{Labels, ObjectKey, PeerAuthentication, PeerMtls, Text, match_labels};

/// PeerAuthentications by namespace.
pub(crate) fn index_by_namespace<'s>(
    policies: &Collection<'s, ObjectKey, PeerAuthentication>,
) -> Index<'s, Text, ObjectKey, PeerAuthentication> {
    policies.index("peer_authentications/by-namespace", |_, policy| [(policy.namespace.clone(), policy.clone())])
}

/// PeerAuthentications as clients read them, by namespace.
/// Key: that of the policy. From: `peer_authentications`. Changes when: a policy begins or ceases to disable mutual TLS, or
/// selects others. Size: PeerAuthentications. Rejects: none.
pub(crate) fn index_client_policies<'s>(
    policies: &Collection<'s, ObjectKey, PeerAuthentication>,
) -> Index<'s, Text, ObjectKey, PeerAuthentication> {
    let of_clients = policies.map("peer_authentications/client-policies", |_, policy| client_policy(policy));
    of_clients.index("peer_authentications/client-policies/by-namespace", |_, policy| {
        [(policy.namespace.clone(), policy.clone())]
    })
}

/// A policy that disables mutual TLS for the same workloads and ports. Clients read only that, so their clusters and endpoints do not
/// change when a policy begins to require mutual TLS.
fn client_policy(policy: &PeerAuthentication) -> PeerAuthentication {
    let mut policy = policy.clone();
    // One whose selector cannot be read overrides others only where it requires mutual TLS.
    if !policy.selector_unreadable {
        for mode in std::iter::once(&mut policy.mtls).chain(policy.ports.values_mut()) {
            if *mode == PeerMtls::Strict {
                *mode = PeerMtls::Permissive;
            }
        }
    }
    policy
}

/// Looks up the policies that can apply to workloads of a namespace.
#[derive(Clone, Copy)]
pub(crate) struct PeerLookup {
    by_namespace: IndexDep<Text, ObjectKey, PeerAuthentication>,
}

impl PeerLookup {
    /// Declares the look-up.
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, index: &Index<'s, Text, ObjectKey, PeerAuthentication>) -> Self {
        Self { by_namespace: deps.by(index) }
    }

    /// The policies of a namespace and those of the mesh, older ones first.
    #[must_use]
    pub(crate) fn get(&self, cx: &Context, namespace: &Text, root: &Text) -> PeerPolicies {
        let of = |namespace| cx.by(&self.by_namespace, namespace).into_iter().map(|(_, policy)| policy).collect();
        let own = if namespace == root { Vec::new() } else { of(namespace) };
        PeerPolicies::new(own, of(root))
    }
}

/// The policies that can apply to workloads of one namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerPolicies {
    own: Vec<Arc<PeerAuthentication>>,
    mesh: Vec<Arc<PeerAuthentication>>,
}

impl PeerPolicies {
    /// The policies of a namespace, none if it is the root namespace, and those of the root namespace.
    #[must_use]
    pub(crate) fn new(mut own: Vec<Arc<PeerAuthentication>>, mut mesh: Vec<Arc<PeerAuthentication>>) -> Self {
        for policies in [&mut own, &mut mesh] {
            policies.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
        }
        Self { own, mesh }
    }

    /// The mode that clients of the namespace's services use: that of the namespace, else that of the mesh.
    #[must_use]
    pub(crate) fn of_namespace(&self) -> MtlsMode {
        let wide = |policies: &[Arc<PeerAuthentication>]| {
            policies.iter().find(|policy| is_wide(policy)).and_then(|policy| mode(policy.mtls))
        };
        wide(&self.own).or_else(|| wide(&self.mesh)).unwrap_or_default()
    }

    /// The policy of a workload with these labels: the oldest policy that selects it, then that of its namespace, then
    /// that of the mesh. A policy with a selector in the root namespace selects only workloads of that namespace. A policy
    /// whose selector cannot be read adds ports that require mutual TLS.
    #[must_use]
    pub(crate) fn of_workload(&self, labels: &Labels) -> PeerPolicy {
        let selecting = self.selecting(labels);
        let whole = selecting.and_then(|policy| mode(policy.mtls)).unwrap_or_else(|| self.of_namespace());
        let ports: BTreeMap<u32, MtlsMode> = selecting
            .iter()
            .flat_map(|policy| &policy.ports)
            .map(|(port, of_port)| (*port, mode(*of_port).unwrap_or(whole)))
            .collect();
        let mut found = PeerPolicy { mode: whole, ports };
        for policy in self.own.iter().chain(&self.mesh).filter(|policy| policy.selector_unreadable) {
            if match_labels(&policy.selector, labels) {
                require(&mut found, policy);
            }
        }
        found
    }

    /// The oldest policy of the namespace that selects a workload with these labels.
    fn selecting(&self, labels: &Labels) -> Option<&Arc<PeerAuthentication>> {
        self.own.iter().find(|policy| {
            !policy.selector.is_empty() && !policy.selector_unreadable && match_labels(&policy.selector, labels)
        })
    }

    /// The policies that [`Self::of_workload`] reads, the most specific first. The first one that declares a mode decides, unless
    /// a policy whose selector cannot be read requires more.
    #[must_use]
    pub(crate) fn read_for_workload(&self, labels: &Labels) -> Vec<&Arc<PeerAuthentication>> {
        let wide = |policies: &'_ [Arc<PeerAuthentication>]| policies.iter().position(|policy| is_wide(policy));
        let own = wide(&self.own).map(|at| &self.own[at]);
        let mesh = wide(&self.mesh).map(|at| &self.mesh[at]);
        let unreadable = self.own.iter().chain(&self.mesh).filter(|policy| policy.selector_unreadable);
        let unreadable = unreadable.filter(|policy| match_labels(&policy.selector, labels));
        self.selecting(labels).into_iter().chain(own).chain(mesh).chain(unreadable).collect()
    }

    /// Whether all workloads of the namespace have the same policy.
    #[must_use]
    pub(crate) fn is_uniform(&self) -> bool {
        self.own.iter().all(|policy| is_wide(policy)) && !self.mesh.iter().any(|policy| policy.selector_unreadable)
    }
}

/// Whether a policy applies to all workloads.
fn is_wide(policy: &PeerAuthentication) -> bool {
    policy.selector.is_empty() && !policy.selector_unreadable
}

/// Adds the requirements of a policy whose selector cannot be read. What it permits has no effect.
fn require(found: &mut PeerPolicy, policy: &PeerAuthentication) {
    if policy.mtls == PeerMtls::Strict {
        for port in policy.ports.keys() {
            found.ports.entry(*port).or_insert(found.mode);
        }
        found.mode = MtlsMode::Strict;
        let others = found.ports.iter_mut().filter(|(port, _)| !policy.ports.contains_key(port));
        others.for_each(|(_, mode)| *mode = MtlsMode::Strict);
    }
    for (port, declared) in &policy.ports {
        if mode(*declared).or(mode(policy.mtls)) == Some(MtlsMode::Strict) {
            found.ports.insert(*port, MtlsMode::Strict);
        }
    }
}

fn mode(declared: PeerMtls) -> Option<MtlsMode> {
    match declared {
        PeerMtls::Unset => None,
        PeerMtls::Disable => Some(MtlsMode::Disable),
        PeerMtls::Permissive => Some(MtlsMode::Permissive),
        PeerMtls::Strict => Some(MtlsMode::Strict),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_envoy::listener::MtlsMode;
    use sluice_model::{Labels, PeerAuthentication, PeerMtls};

    use super::{PeerPolicies, client_policy};

    fn policy(mtls: PeerMtls, app: Option<&str>, ports: &[(u32, PeerMtls)]) -> Arc<PeerAuthentication> {
        Arc::new(PeerAuthentication {
            mtls,
            selector: app.map(|app| ("app".into(), app.into())).into_iter().collect(),
            ports: ports.iter().copied().collect(),
            ..PeerAuthentication::default()
        })
    }

    fn labels(app: &str) -> Labels {
        [("app".into(), app.into())].into()
    }

    #[test]
    fn the_workload_comes_before_the_namespace_before_the_mesh() {
        let mut policies = PeerPolicies { mesh: vec![policy(PeerMtls::Strict, None, &[])], own: Vec::new() };
        assert_eq!(policies.of_namespace(), MtlsMode::Strict);
        policies.own.push(policy(PeerMtls::Disable, None, &[]));
        policies.own.push(policy(PeerMtls::Strict, None, &[]));
        assert_eq!(policies.of_namespace(), MtlsMode::Disable);
        policies.own.push(policy(PeerMtls::Unset, Some("web"), &[(80, PeerMtls::Strict), (90, PeerMtls::Unset)]));
        let web = policies.of_workload(&labels("web"));
        assert_eq!([web.mode(80), web.mode(90), web.mode(1)], [MtlsMode::Strict, MtlsMode::Disable, MtlsMode::Disable]);
        assert_eq!(policies.of_workload(&labels("db")).mode(80), MtlsMode::Disable);
    }

    #[test]
    fn policy_with_an_unreadable_selector_only_requires() {
        use PeerMtls::{Disable, Permissive, Strict};
        let lost = |mtls, ports| {
            let policy = PeerAuthentication::clone(&policy(mtls, Some("web"), ports));
            Arc::new(PeerAuthentication { selector_unreadable: true, ..policy })
        };
        let modes = |own: Vec<Arc<PeerAuthentication>>, mesh, app| {
            let policies = PeerPolicies { own, mesh };
            assert!(!policies.is_uniform());
            let found = policies.of_workload(&labels(app));
            [found.mode(80), found.mode(90), found.mode(1)]
        };
        let web = || policy(Permissive, Some("web"), &[(80, Disable)]);
        let strict = [MtlsMode::Strict; 3];
        assert_eq!(modes(vec![web(), lost(Strict, &[])], vec![], "web"), strict);
        assert_eq!(modes(vec![web()], vec![lost(Strict, &[])], "web"), strict);
        let excepted = modes(vec![lost(Strict, &[(80, Permissive)]), web()], vec![], "web");
        assert_eq!(excepted, [MtlsMode::Disable, MtlsMode::Strict, MtlsMode::Strict]);
        let one = modes(vec![lost(PeerMtls::Unset, &[(90, Strict)])], vec![], "web");
        assert_eq!(one, [MtlsMode::Permissive, MtlsMode::Strict, MtlsMode::Permissive]);
        assert_eq!(modes(vec![lost(Strict, &[])], vec![], "db"), [MtlsMode::Permissive; 3]);
        let wide = policy(Strict, None, &[]);
        assert_eq!(modes(vec![lost(Disable, &[]), wide], vec![], "web"), strict, "it does not replace another policy");
    }

    #[test]
    fn client_policies_disable_the_same_ports() {
        use PeerMtls::{Disable, Permissive, Strict, Unset};
        let modes = [Unset, Disable, Permissive, Strict];
        let variants = modes.into_iter().flat_map(|whole| {
            modes.into_iter().flat_map(move |of_port| {
                let selecting = PeerAuthentication::clone(&policy(whole, Some("web"), &[(80, of_port)]));
                let unreadable = PeerAuthentication { selector_unreadable: true, ..selecting.clone() };
                let wide = PeerAuthentication::clone(&policy(whole, None, &[(80, of_port)]));
                [selecting, unreadable, wide]
            })
        });
        let variants: Vec<PeerAuthentication> = variants.collect();
        let disabled = |own: Vec<PeerAuthentication>, mesh: PeerAuthentication| {
            let policies = PeerPolicies { own: own.into_iter().map(Arc::new).collect(), mesh: vec![Arc::new(mesh)] };
            let is_disabled = |mode| mode == MtlsMode::Disable;
            let of_workload = ["web", "db"].map(|app| {
                let found = policies.of_workload(&labels(app));
                [80, 90].map(|port| is_disabled(found.mode(port)))
            });
            (policies.is_uniform(), is_disabled(policies.of_namespace()), of_workload)
        };
        for one in &variants {
            for other in &variants {
                for mesh in &variants {
                    let own = [one, other];
                    let expected = disabled(own.map(Clone::clone).to_vec(), mesh.clone());
                    let found = disabled(own.map(client_policy).to_vec(), client_policy(mesh));
                    assert_eq!(found, expected, "{one:?}, {other:?}, {mesh:?}");
                }
            }
        }
        let toggled = [Permissive, Strict].map(|mode| client_policy(&policy(mode, None, &[(80, mode)])));
        assert_eq!(toggled[0], toggled[1]);
    }

    #[test]
    fn the_mode_is_inherited_from_the_mesh_and_permissive_by_default() {
        let unset = || policy(PeerMtls::Unset, None, &[]);
        let policies = PeerPolicies { mesh: vec![policy(PeerMtls::Strict, None, &[])], own: vec![unset()] };
        assert_eq!(policies.of_namespace(), MtlsMode::Strict);
        let policies = PeerPolicies { mesh: vec![unset()], own: vec![unset()] };
        assert_eq!(policies.of_namespace(), MtlsMode::Permissive);
        assert_eq!(PeerPolicies::default().of_namespace(), MtlsMode::Permissive);
    }
}
