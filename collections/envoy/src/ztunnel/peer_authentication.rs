//! PeerAuthentications as DENY policies for connections without an identity (A04).

use bytes::Bytes;
use sluice_model::{PeerAuthentication, PeerMtls};
use sluice_proto::google::protobuf::Empty;
use sluice_proto::istio::security::string_match::MatchType;
use sluice_proto::istio::security::{Action, Authorization, Group, Match, Rules, Scope, StringMatch};

/// Name of the policy in the root namespace for workloads with mode STRICT. Object names do not contain `_`.
pub const STRICT_POLICY: &str = "istio_converted_static_strict";

/// Name of the policy for the port-level modes of a PeerAuthentication.
#[must_use]
pub fn peer_policy_name(policy: &str) -> String {
    format!("converted_peer_authentication_{policy}")
}

/// The policy that denies connections without an identity.
#[must_use]
pub fn build_strict_authorization(root_namespace: &str) -> Bytes {
    crate::wire::encode(&deny(STRICT_POLICY, root_namespace, vec![Group { rules: vec![clause(anonymous())] }]))
}

/// The policy for port-level modes; `None` if it would be equivalent to the policy for all ports. `inherited` are the modes
/// of namespace and mesh.
#[must_use]
pub fn build_peer_authorization(policy: &PeerAuthentication, above: InheritedModes) -> Option<Bytes> {
    peer_authorization(policy, above).map(|policy| crate::wire::encode(&policy))
}

pub(super) fn peer_authorization(policy: &PeerAuthentication, above: InheritedModes) -> Option<Authorization> {
    if policy.selector.is_empty() || policy.ports.is_empty() {
        return None;
    }
    let own = policy.mtls;
    // For a strict port, the inherited mode decides regardless of the mode for other ports, as in Istio.
    let strict_anyway = own == PeerMtls::Strict
        || (own == PeerMtls::Unset && above.namespace == Some(PeerMtls::Strict))
        || (above.inherits() && above.mesh == Some(PeerMtls::Strict));
    let lax_anyway = match own {
        PeerMtls::Permissive | PeerMtls::Disable => true,
        PeerMtls::Strict => false,
        PeerMtls::Unset => above.namespace.or(above.mesh) != Some(PeerMtls::Strict),
    };
    let mut exempt = Vec::new();
    let mut groups = Vec::new();
    for (port, mode) in &policy.ports {
        match mode {
            PeerMtls::Strict if !strict_anyway => {
                let on_port = Match { destination_ports: vec![*port], ..anonymous() };
                groups.push(Group { rules: vec![clause(on_port)] });
            }
            PeerMtls::Permissive | PeerMtls::Disable if !lax_anyway => {
                exempt.push(clause(Match { not_destination_ports: vec![*port], ..Match::default() }));
            }
            _ => {}
        }
    }
    let exempts = !exempt.is_empty();
    if own == PeerMtls::Strict && !exempts {
        return None;
    }
    let mut rules = Vec::new();
    if own == PeerMtls::Strict {
        rules.push(clause(anonymous()));
    }
    rules.extend(exempt);
    if exempts && above.is_strict() {
        rules.push(clause(anonymous()));
    }
    if !rules.is_empty() {
        groups.push(Group { rules });
    }
    let name = peer_policy_name(&policy.name);
    (!groups.is_empty()).then(|| deny(&name, &policy.namespace, groups))
}

/// Modes of namespace and mesh, which a workload policy inherits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InheritedModes {
    /// Mode of the namespace, if it has a policy.
    pub namespace: Option<PeerMtls>,
    /// Mode of the mesh, if it has a policy.
    pub mesh: Option<PeerMtls>,
}

impl InheritedModes {
    /// The mode of the namespace, or of the mesh if the namespace inherits.
    fn inherits(self) -> bool {
        matches!(self.namespace, None | Some(PeerMtls::Unset))
    }

    fn is_strict(self) -> bool {
        let of_mesh = self.mesh == Some(PeerMtls::Strict) && self.inherits();
        of_mesh || self.namespace == Some(PeerMtls::Strict)
    }
}

fn deny(name: &str, namespace: &str, groups: Vec<Group>) -> Authorization {
    Authorization {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        scope: Scope::WorkloadSelector.into(),
        action: Action::Deny.into(),
        groups,
        ..Authorization::default()
    }
}

/// Match of connections without an identity.
fn anonymous() -> Match {
    Match { not_principals: vec![StringMatch { match_type: Some(MatchType::Presence(Empty {})) }], ..Match::default() }
}

fn clause(only: Match) -> Rules {
    Rules { matches: vec![only] }
}
