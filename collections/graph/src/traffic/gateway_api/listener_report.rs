//! The state of a listener, as its status reports it (G05).

use serde::Serialize;
use sluice_model::gateway_api::{GroupKind, Listener, ListenerTlsMode};
use sluice_model::{HBONE_PORT, Text};

use super::classes::GatewayController;
use super::tls::is_not_accepted;
use crate::statuses::{StatusCondition, StatusProblem};

/// The state of a listener.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct ListenerReport {
    /// Kinds of routes that it accepts.
    pub(super) kinds: Vec<GroupKind>,
    /// Its conditions.
    pub(super) conditions: Vec<StatusCondition>,
    /// The port of its server, if it has one.
    pub(super) port: Option<u16>,
    /// It is served.
    pub(super) is_valid: bool,
}

/// What the state of a listener follows from.
pub(super) struct ListenerChecks<'a> {
    /// The listener.
    pub(super) listener: &'a Listener,
    /// The controller of its Gateway.
    pub(super) controller: GatewayController,
    /// It is in a ListenerSet.
    pub(super) is_set: bool,
    /// Its port; 0 if none is set and the protocol has no default.
    pub(super) port: u16,
    /// The controller serves its protocol.
    pub(super) is_served: bool,
    /// It has a server. A listener with TLS but without settings for it has none.
    pub(super) has_server: bool,
    /// Why its TLS settings cannot be used.
    pub(super) tls_problem: Option<&'a StatusProblem>,
}

const NO_ERRORS: &str = "No errors found";
const UNSUPPORTED_PROTOCOL: &str = "UnsupportedProtocol";

impl ListenerReport {
    /// The state of a listener that conflicts with no other one.
    pub(super) fn new(checks: &ListenerChecks<'_>, kinds: Vec<GroupKind>) -> Self {
        let ListenerChecks { listener, port, is_served, has_server, tls_problem, .. } = *checks;
        let lacks_tls = checks.is_set && !has_server;
        let bad_tls = StatusProblem::new("Invalid", "Bad TLS configuration");
        let programmed = (tls_problem.is_some() || lacks_tls).then_some(&bad_tls);
        let resolved = StatusCondition::met("ResolvedRefs", "ResolvedRefs", NO_ERRORS).unless(tls_problem);
        let conditions = vec![
            StatusCondition::met("Accepted", "Accepted", NO_ERRORS).unless(checks.not_accepted().as_ref()),
            StatusCondition::not_met("Conflicted", "NoConflicts", NO_ERRORS),
            StatusCondition::met("Programmed", "Programmed", NO_ERRORS).unless(programmed),
            invalid_kinds(listener, &kinds).unwrap_or(resolved),
        ];
        let is_valid = tls_problem.is_none() && is_served && port != 0 && !lacks_tls;
        Self { kinds, conditions, port: has_server.then_some(port), is_valid }
    }

    /// The state of a listener that conflicts with another one.
    pub(super) fn conflict(listener: &Listener, kinds: Vec<GroupKind>, reason: &'static str) -> Self {
        let message = "Listener has a conflict with another listener attached to the same Gateway";
        let conditions = [
            StatusCondition::not_met("Accepted", reason, message),
            StatusCondition::met("Conflicted", reason, message),
            StatusCondition::not_met("Programmed", reason, message),
        ];
        let conditions = conditions.into_iter().chain(invalid_kinds(listener, &kinds)).collect();
        Self { kinds, conditions, port: None, is_valid: false }
    }
}

/// The condition of a listener that allows kinds of routes that it does not support.
fn invalid_kinds(listener: &Listener, kinds: &[GroupKind]) -> Option<StatusCondition> {
    let allowed = &listener.allowed_routes.kinds;
    let is_invalid = !allowed.is_empty() && allowed.len() != kinds.len();
    is_invalid.then(|| StatusCondition::not_met("ResolvedRefs", "InvalidRouteKinds", "Invalid route kinds"))
}

impl ListenerChecks<'_> {
    /// Why the listener is not accepted. The last reason counts, as in the reference.
    fn not_accepted(&self) -> Option<StatusProblem> {
        let Listener { protocol, .. } = self.listener;
        let unsupported = |message: String| Some(StatusProblem::new(UNSUPPORTED_PROTOCOL, message));
        if self.is_set && !self.has_server {
            return unsupported(format!("protocol is {protocol} but no TLS section is defined"));
        }
        let is_unexpected = match self.controller {
            GatewayController::Waypoint | GatewayController::AgentgatewayWaypoint => (self.port != HBONE_PORT
                || *protocol != *"HBONE")
                .then_some("Expected a single listener on port 15008 with protocol \"HBONE\""),
            GatewayController::EastWest => (!self.is_east_west()).then_some(
                "East-west gateway listeners must be either port 15008 with protocol \"HBONE\" and \
                 TLS.Mode == Terminate, or TLS with TLS.Mode == Passthrough",
            ),
            GatewayController::Router | GatewayController::Remote | GatewayController::Agentgateway => None,
        };
        if let Some(message) = is_unexpected {
            return unsupported(message.to_owned());
        }
        if !self.is_served {
            return unsupported(unsupported_protocol(protocol));
        }
        if self.is_set && self.port == 0 {
            return unsupported(format!("protocol {protocol} requires a port to be set"));
        }
        let problem = self.tls_problem.filter(|problem| is_not_accepted(problem))?;
        Some(StatusProblem { reason: "NoValidCACertificate", ..problem.clone() })
    }

    /// Whether it is a listener of an east-west gateway.
    fn is_east_west(&self) -> bool {
        let mode = self.listener.tls.as_ref().map(|tls| tls.mode.unwrap_or(ListenerTlsMode::Terminate));
        match (self.port, self.listener.protocol.as_str()) {
            (HBONE_PORT, protocol) => protocol == "HBONE" && mode == Some(ListenerTlsMode::Terminate),
            (_, protocol) => protocol == "TLS" && mode == Some(ListenerTlsMode::Passthrough),
        }
    }
}

/// Why a protocol is not served.
fn unsupported_protocol(protocol: &Text) -> String {
    let upper = protocol.to_uppercase();
    if *protocol == *"HBONE" {
        format!("protocol \"{protocol}\" is only supported for waypoint proxies")
    } else if *protocol == *"TCP" {
        format!("protocol \"{protocol}\" is only supported when the alpha Gateway API is enabled")
    } else if upper != protocol.as_str() && ["HTTP", "HTTPS", "TLS", "TCP", "HBONE"].contains(&upper.as_str()) {
        format!("protocol \"{protocol}\" is unsupported. hint: \"{upper}\" (uppercase) may be supported")
    } else {
        format!("protocol \"{protocol}\" is unsupported")
    }
}
