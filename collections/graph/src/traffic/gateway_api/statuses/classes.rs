//! The statuses of GatewayClasses (G05).

use sluice_engine::Collection;
use sluice_model::Kind;
use sluice_model::gateway_api::GatewayClass;

use super::StatusInputs;
use crate::statuses::{StatusCondition, StatusDraft, StatusKey, StatusUpdate};

/// Statuses of the GatewayClasses of our controllers that have to be written.
/// Key: `StatusKey`. From: `gateway_classes`, `own_revision`. Changes when: the class or its status does. Size: classes that are
/// not written yet. Rejects: none.
pub(super) fn derive_class_statuses<'s>(inputs: &StatusInputs<'_, 's>) -> Collection<'s, StatusKey, StatusUpdate> {
    let options = inputs.options.gateway_api.clone();
    let updates = inputs.objects.gateway_classes.derive("gateway_api/class_statuses", |deps| {
        let revisions = inputs.revisions.on(deps);
        move |cx, key, class: &GatewayClass| {
            let is_ours = options.writes_statuses
                && options.controller_named(&class.controller).is_some()
                && revisions.owns(cx, key, &class.meta.labels);
            is_ours.then(|| {
                let mut draft = StatusDraft::new(&class.status);
                draft.set_conditions(&[StatusCondition::met("Accepted", "Accepted", "Handled by Istio controller")]);
                draft.finish()
            })?
        }
    });
    updates.flat_map("gateway_api/class_status_updates", |key, update| {
        [(StatusKey { kind: Kind::GatewayClass, object: key.clone() }, update.clone())]
    })
}
