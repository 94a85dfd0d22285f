//! The statuses of Gateways (G05).

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};
use sluice_engine::{Collection, Context, Dep, IndexDep};
use sluice_model::gateway_api::{AddressKind, GROUP, Gateway, GatewayAddress, GatewayClass, GroupKind, ObjectRef};
use sluice_model::{Kind, ObjectKey, Text};

use super::super::classes::{GatewayController, find_controller};
use super::super::credentials::CredentialLookup;
use super::super::grants::GrantLookup;
use super::super::listener_report::ListenerReport;
use super::super::listeners::{ListenerKey, ParentKey, services};
use super::super::parameters::ParameterLookup;
use super::super::revisions::RevisionLookup;
use super::instances::{InstanceLookup, ReportedAddresses, address_problem};
use super::listeners::ReportedListeners;
use super::{Reports, StatusInputs};
use crate::options::GraphOptions;
use crate::statuses::{StatusCondition, StatusDraft, StatusKey, StatusProblem, StatusUpdate};

/// Annotation: which addresses are reported.
const ADDRESS_TYPE: &str = "networking.istio.io/address-type";
/// The condition that clients without a valid certificate are accepted.
const INSECURE: &str = "InsecureFrontendValidationMode";

/// Statuses of the Gateways of our controllers that have to be written.
/// Key: `StatusKey`. From: `kubernetes_gateways`, `gateway_classes`, `gateway_api/listener_rows`, `services` (of the Gateway)
/// and the ports of their endpoints, `gateway_api/attached-route-counts`, `namespaces`, `reference_grants`, `secrets`,
/// `gateway_parameters`, `own_revision`.
/// Changes when: the Gateway, its status or one of these does. Size: Gateways that are not written yet. Rejects: none.
pub(super) fn derive_gateway_statuses<'s>(
    inputs: &StatusInputs<'_, 's>,
    reports: &Reports<'s>,
) -> Collection<'s, StatusKey, StatusUpdate> {
    let options = inputs.options.clone();
    let updates = inputs.objects.kubernetes_gateways.derive("gateway_api/gateway_statuses", |deps| {
        let lookups = GatewayLookups {
            classes: deps.on(&inputs.objects.gateway_classes),
            reports: deps.by(&reports.by_gateway),
            attached_routes: deps.on(&reports.attached_routes),
            instances: InstanceLookup::on(deps, inputs, &reports.instance_ports),
            revisions: inputs.revisions.on(deps),
            grants: GrantLookup::on(deps, inputs.grants),
            credentials: CredentialLookup::on(deps, inputs.credentials),
            parameters: ParameterLookup::on(deps, inputs.parameters),
        };
        move |cx, key, gateway| {
            let is_ours = options.gateway_api.writes_statuses && lookups.revisions.owns(cx, key, &gateway.meta.labels);
            is_ours.then(|| lookups.update(cx, key, gateway, &options)).flatten()
        }
    });
    updates.flat_map("gateway_api/gateway_status_updates", |key, update| {
        [(StatusKey { kind: Kind::KubernetesGateway, object: key.clone() }, update.clone())]
    })
}

struct GatewayLookups {
    classes: Dep<ObjectKey, GatewayClass>,
    reports: IndexDep<ObjectKey, ListenerKey, ListenerReport>,
    attached_routes: Dep<ListenerKey, u32>,
    instances: InstanceLookup,
    revisions: RevisionLookup,
    grants: GrantLookup,
    credentials: CredentialLookup,
    parameters: ParameterLookup,
}

impl GatewayLookups {
    fn update(&self, cx: &Context, key: &ObjectKey, gateway: &Gateway, options: &GraphOptions) -> Option<StatusUpdate> {
        let mut draft = StatusDraft::new(&gateway.status);
        let controller = find_controller(cx, &self.classes, &key.cluster, &gateway.class, &options.gateway_api)?;
        if controller == GatewayController::Remote {
            draft.set_conditions(&[
                StatusCondition::met("Accepted", "Accepted", "Resource accepted"),
                StatusCondition::met("Programmed", "Programmed", "This Gateway is remote; Istio will not program it"),
            ]);
            draft.set("addresses", json_addresses(gateway.addresses.iter().map(declared_address).collect()));
            draft.set("listeners", None);
            return draft.finish();
        }
        let hosts = services(gateway, controller, options);
        let all = cx.by(&self.reports, key);
        let (of_sets, own): (Vec<_>, Vec<_>) = all.into_iter().partition(|(listener, _)| listener.parent.is_set);
        let of_sets: Vec<_> = of_sets.into_iter().filter(|(_, report)| report.is_valid).collect();
        let sets: BTreeSet<&ObjectKey> = of_sets.iter().map(|(listener, _)| &listener.parent.object).collect();
        let is_agentgateway = controller.is_agentgateway();
        if !sets.is_empty() || is_agentgateway {
            draft.set("attachedListenerSets", Some(sets.len().into()));
        }
        let ports: BTreeSet<u16> = own.iter().chain(&of_sets).filter_map(|(_, report)| report.port).collect();
        let instances = self.instances.find(cx, &key.namespace, &hosts, &ports);
        let valid = own.iter().filter(|(_, report)| report.is_valid).count();
        let problem = address_problem(gateway, options).or_else(|| self.parameters.of_gateway(cx, key, gateway).err());
        let resolved = StatusCondition::met("ResolvedRefs", "ResolvedRefs", "All references resolved");
        let mut conditions = vec![
            accepted(problem.as_ref(), valid, gateway.listeners.len()),
            instances.programmed(),
            resolved.unless(self.certificate_problem(cx, key, gateway).as_ref()),
        ];
        if let Some(frontend) = &gateway.frontend_tls {
            let mut all = frontend.per_port.values().chain([&frontend.default]);
            if all.any(|validation| validation.allows_insecure) {
                let message = "Gateway is operating in AllowInsecureFallback mode for frontend validation";
                conditions.push(StatusCondition::met(INSECURE, "ConfigurationChanged", message));
            } else {
                draft.remove_condition(INSECURE);
            }
        }
        if is_agentgateway && conditions.iter().all(|condition| condition.kind != INSECURE) {
            let message = "AllowInsecureFallback mode is disabled for frontend validation";
            conditions.push(StatusCondition::not_met(INSECURE, "AllowInsecureFallbackNotConfigured", message));
        }
        let wanted = match (gateway.meta.annotations.get(ADDRESS_TYPE).map(Text::as_str), controller) {
            (Some("IPAddress"), _) => ReportedAddresses::Ips,
            (Some("Hostname"), _) | (None, GatewayController::Router | GatewayController::Agentgateway) => {
                ReportedAddresses::Hostnames
            }
            _ => ReportedAddresses::All,
        };
        // An address that was reported stays until there is another one.
        let addresses = json_addresses(instances.addresses(wanted).iter().map(known_address).collect());
        if addresses.is_some() {
            draft.set("addresses", addresses);
        }
        let parent = ParentKey { is_set: false, object: key.clone() };
        let listeners = ReportedListeners { parent, declared: &gateway.listeners, reports: own };
        listeners.set(cx, &self.attached_routes, &mut draft);
        draft.set_conditions(&conditions);
        draft.finish()
    }

    /// Why the certificate for backends cannot be used.
    fn certificate_problem(&self, cx: &Context, key: &ObjectKey, gateway: &Gateway) -> Option<StatusProblem> {
        let reference = gateway.backend_certificate.as_ref()?;
        let ObjectRef { kind: GroupKind { group, kind }, namespace, name } = reference;
        let shown = format!("{group}/{kind}/{name}.{}", namespace.as_ref().map_or("", Text::as_str));
        let invalid = |what: &str| {
            let message = format!("invalid clientCertificateRef {shown}, {what}");
            Some(StatusProblem::new("InvalidClientCertificateRef", message))
        };
        let namespace = reference.namespace_in(&key.namespace);
        let from = GroupKind { group: GROUP.into(), kind: "Gateway".into() };
        if !reference.kind.is("", "Secret") {
            return invalid("only secret is allowed");
        }
        // Whether a Secret exists is told only to those that may refer to it.
        if !self.grants.allow(cx, (&from, &key.namespace), (&reference.kind, &namespace, name)) {
            let message = format!(
                "clientCertificateRef {name}/{namespace} not accessible to a Gateway in namespace \"{}\" (missing a \
                 ReferenceGrant?)",
                key.namespace
            );
            return Some(StatusProblem::new("RefNotPermitted", message));
        }
        let secret = ObjectKey::new(key.cluster.clone(), namespace, name.clone());
        self.credentials.check_certificate(cx, &secret).err().and_then(|problem| invalid(&problem))
    }
}

/// The condition that a Gateway is valid: at least one of its listeners is.
fn accepted(problem: Option<&StatusProblem>, valid: usize, listeners: usize) -> StatusCondition {
    const NOT_VALID: &str = "ListenersNotValid";
    if problem.is_none() && valid < listeners {
        return match valid {
            0 => StatusCondition::not_met("Accepted", NOT_VALID, "None of the Gateway's listeners are valid"),
            _ => StatusCondition::met("Accepted", NOT_VALID, "One or more of the Gateway's listeners are invalid"),
        };
    }
    StatusCondition::met("Accepted", "Accepted", "Resource accepted").unless(problem)
}

fn json_addresses(addresses: Vec<Value>) -> Option<Value> {
    (!addresses.is_empty()).then_some(Value::Array(addresses))
}

/// An address that a Gateway requests.
fn declared_address(address: &GatewayAddress) -> Value {
    let kind = match &address.kind {
        AddressKind::Unset | AddressKind::Ip => "IPAddress",
        AddressKind::Hostname => "Hostname",
        AddressKind::Other(kind) => kind.as_str(),
    };
    json!({"type": kind, "value": address.value.as_str()})
}

/// An address or host name.
fn known_address(address: &Text) -> Value {
    let kind = if address.parse::<IpAddr>().is_ok() { "IPAddress" } else { "Hostname" };
    json!({"type": kind, "value": address.as_str()})
}
