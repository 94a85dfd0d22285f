//! Findings about AuthorizationPolicies of gateways with listeners for datagrams, which relay none because of them (G02).

use sluice_engine::Collection;
use sluice_model::{Kind, ObjectKey, Reject, RejectCause, Severity};

use super::MergedGateway;
use super::routers::Router;
use crate::inputs::RejectKey;
use crate::proxies::policies::{PolicyBuilder, PolicyFinder, PolicyInputs};

/// What is wrong with such a policy.
const REASON: &str = "Envoy cannot check datagrams, so a gateway that this policy applies to relays none at its listeners of protocol UDP";

/// Findings about policies of gateways with listeners for datagrams.
/// Key: `RejectKey`. From: `merged_gateways`, `authorization_policies`, `root_namespace`.
/// Changes when: a router gets its first or loses its last such listener, or a policy that may deny. Size: such policies.
/// Rejects: these.
pub(crate) fn derive_udp_policy_rejects<'s>(
    merged: &Collection<'s, Router, MergedGateway>,
    policies: &PolicyInputs<'_, 's>,
) -> Collection<'s, RejectKey, Vec<Reject>> {
    let routers = merged.filter("udp_policies/routers", |_, merged| merged.ports.iter().any(|port| port.udp));
    let denying = routers.derive("udp_policies/of-routers", |deps| {
        let (finder, builder) = (PolicyFinder::on(deps, policies), PolicyBuilder::on(deps, policies));
        move |cx, router, merged| {
            let keys = finder.find(cx, &merged.namespace, &router.labels);
            Some(builder.denying(cx, &keys))
        }
    });
    let by_policy = denying.index("udp_policies/by-policy", |_, policies: &Vec<ObjectKey>| {
        let row = |object: &ObjectKey| (RejectKey { kind: Kind::AuthorizationPolicy, object: object.clone() }, ());
        policies.iter().map(row).collect::<Vec<_>>()
    });
    by_policy.distinct("udp_policies/each").map("udp_policies/rejects", |key, ()| {
        vec![Reject {
            kind: key.kind,
            object: key.object.clone(),
            field_path: "spec".into(),
            reason: REASON.into(),
            severity: Severity::Warning,
            cause: RejectCause::Other,
        }]
    })
}
