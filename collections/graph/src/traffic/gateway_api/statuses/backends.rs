//! The statuses of XBackends (G05, G06).

use std::collections::BTreeSet;

use serde_json::json;
use sluice_engine::{Collection, Context, IndexDep};
use sluice_model::gateway_api::{Backend, BackendTlsMode, EXPERIMENTAL_GROUP, GROUP};
use sluice_model::{Kind, ObjectKey, Text};

use super::super::backend_gateways::{BackendKey, GatewaysOfBackends};
use super::super::classes::MESH_CONTROLLER;
use super::super::credentials::CredentialLookup;
use super::super::policies::TargetKind;
use super::StatusInputs;
use super::ancestors::{Ancestor, set_ancestors};
use super::validation::ValidationReport;
use crate::statuses::{StatusDraft, StatusKey, StatusUpdate};

/// Most ancestors that the status of an XBackend may have.
const MAX_ANCESTORS: usize = 32;

/// Statuses of XBackends that have to be written.
/// Key: `StatusKey`. From: `backends`, `root_bundles` (their presence), the routes that refer to the backends, `namespaces`,
/// `own_revision`. Changes when: the backend, its status or one of these does. Size: backends that are not written yet. Rejects: none.
pub(super) fn derive_backend_statuses<'s>(
    inputs: &StatusInputs<'_, 's>,
    gateways: &GatewaysOfBackends<'s>,
) -> Collection<'s, StatusKey, StatusUpdate> {
    let options = inputs.options.gateway_api.clone();
    let updates = inputs.objects.backends.derive("gateway_api/backend_statuses", |deps| {
        let gateways = deps.by(gateways);
        let credentials = CredentialLookup::on(deps, inputs.credentials);
        let revisions = inputs.revisions.on(deps);
        move |cx, key, backend: &Backend| {
            let is_ours =
                options.writes_statuses && options.experimental && revisions.owns(cx, key, &backend.meta.labels);
            is_ours.then(|| update(cx, (&gateways, &credentials), key, backend, &options.controller)).flatten()
        }
    });
    updates.flat_map("gateway_api/backend_status_updates", |key, update| {
        [(StatusKey { kind: Kind::XBackend, object: key.clone() }, update.clone())]
    })
}

fn update(
    cx: &Context,
    (gateways, credentials): (&IndexDep<BackendKey, StatusKey, ObjectKey>, &CredentialLookup),
    key: &ObjectKey,
    backend: &Backend,
    controller: &Text,
) -> Option<StatusUpdate> {
    let mut draft = StatusDraft::new(&backend.status);
    let report = report(cx, credentials, key, backend);
    let conditions = || report.conditions(report.problem.as_ref());
    let mesh = Ancestor {
        reference: json!({"group": EXPERIMENTAL_GROUP, "kind": "XBackend", "name": key.name.as_str()}),
        controller: MESH_CONTROLLER,
        conditions: conditions(),
    };
    let gateways = cx.by(gateways, &(TargetKind::Backend, key.clone()));
    let gateways: BTreeSet<&ObjectKey> = gateways.iter().map(|(_, gateway)| &**gateway).collect();
    let of_gateway = |gateway: &&ObjectKey| Ancestor {
        reference: json!({
            "group": GROUP, "kind": "Gateway", "namespace": gateway.namespace.as_str(), "name": gateway.name.as_str(),
        }),
        controller,
        conditions: conditions(),
    };
    let ancestors = std::iter::once(mesh).chain(gateways.iter().map(of_gateway)).collect();
    set_ancestors(&mut draft, ancestors, &[controller.as_str()], MAX_ANCESTORS);
    draft.finish()
}

/// What is wrong with a backend.
fn report(cx: &Context, credentials: &CredentialLookup, key: &ObjectKey, backend: &Backend) -> ValidationReport {
    if backend.hostname.is_none() {
        return ValidationReport::invalid(format!("unsupported backend type: {}", backend.kind));
    }
    match backend.tls.as_ref().map(|tls| (tls.mode, &tls.validation)) {
        None | Some((BackendTlsMode::None, _)) => ValidationReport::default(),
        Some((BackendTlsMode::ServerOnly, validation)) => ValidationReport::of(cx, credentials, key, validation),
        Some((BackendTlsMode::ClientAndServer, _)) => ValidationReport::invalid(
            "unsupported ClientAndServer TLS mode: Istio does not support client certificates on backend".to_owned(),
        ),
    }
}
