//! The endpoints of an assignment, or of a part of it: selected, weighted, and by group.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::endpoint::v3::LbEndpoint;
use sluice_model::{ClientTlsMode, Endpoint, Protocol, TlsMode};

use super::inputs::AssignmentInputs;
use super::locality::LocalityRules;
use super::networks::EndpointPath;
use super::totals::{AssignmentTotals, GroupKey};
use super::{lb_endpoint, metadata, networks};
use crate::cluster::sends_unhealthy;

/// The endpoints of an assignment that are among the backends of the inputs.
///
/// All that depends on an endpoint alone is decided here, so that the parts of an assignment are independent of each
/// other. The rest follows from the sums: see [`super::frame`].
#[derive(Default)]
pub(super) struct AssignmentPart {
    pub(super) endpoints: BTreeMap<GroupKey, Vec<LbEndpoint>>,
    pub(super) totals: AssignmentTotals,
}

/// Whether an assignment has endpoints that are not ready.
pub(super) fn has_unhealthy(inputs: &AssignmentInputs<'_>, rules: &LocalityRules<'_>) -> bool {
    let outlier = rules.policy().and_then(|policy| policy.outlier_detection.as_ref());
    // With panic routing, Envoy would send traffic to unready endpoints, so they are left out if a rule enables it.
    let by_default = || outlier.is_none_or(|outlier| outlier.min_health_percent <= 0);
    sends_unhealthy(inputs.settings, inputs.service)
        || inputs.settings.switches.sends_unhealthy_by_default && by_default()
}

impl AssignmentPart {
    pub(super) fn new(inputs: &AssignmentInputs<'_>, rules: &LocalityRules<'_>) -> Self {
        let unhealthy = has_unhealthy(inputs, rules);
        let declared_tls = inputs.rule.and_then(|rule| rule.tls_mode(inputs.subset, inputs.port.port));
        let labels = inputs.rule.and_then(|rule| rule.subset(inputs.subset)).map(|subset| &subset.labels);
        let scale = networks::scale(inputs.gateways);
        let mut part = Self::default();
        for backend in inputs.backends {
            let endpoint = backend.endpoint;
            // The picker chooses among the endpoints of all ports.
            let is_other_port = endpoint.port_name != inputs.port.name && !inputs.service.is_inference_pool();
            if is_other_port
                || !lb_endpoint::is_usable(inputs, endpoint, unhealthy)
                || labels.is_some_and(|labels| !metadata::selected(endpoint, labels))
            {
                continue;
            }
            // Datagrams are sent in plaintext.
            let mtls = endpoint.tls_mode == TlsMode::Istio
                && inputs.port.protocol != Protocol::Udp
                && match declared_tls {
                    Some(mode) => mode == ClientTlsMode::IstioMutual,
                    None => !backend.refuses_mtls,
                };
            part.push(inputs, rules, endpoint, (lb_endpoint::lb_endpoint(inputs, endpoint, mtls), scale));
        }
        part
    }

    /// Adds an endpoint with its message.
    pub(super) fn push(
        &mut self,
        inputs: &AssignmentInputs<'_>,
        rules: &LocalityRules<'_>,
        endpoint: &Endpoint,
        (mut message, scale): (LbEndpoint, u32),
    ) {
        // A locality whose endpoints are all replaced or left out still has a priority.
        let place = self.totals.0.entry(endpoint.locality.clone()).or_default();
        match networks::reach(inputs, endpoint, &mut message, scale) {
            EndpointPath::Direct => {}
            EndpointPath::Unreachable => return,
            EndpointPath::Through(gateways, share) => {
                for gateway in gateways {
                    let sum = place.gateways.entry(gateway.clone()).or_default();
                    *sum = sum.saturating_add(share);
                }
                return;
            }
        }
        if inputs.client.only_mtls && !networks::takes_mtls(&message) {
            return;
        }
        let rank = rules.rank(endpoint);
        let totals = place.groups.entry(rank).or_default();
        totals.endpoints += 1;
        totals.weight =
            totals.weight.saturating_add(message.load_balancing_weight.as_ref().map_or(0, |weight| weight.value));
        if rules.sends_to(&endpoint.locality) {
            let group = GroupKey { place: endpoint.locality.clone(), rank };
            self.endpoints.entry(group).or_default().push(message);
        }
    }
}
