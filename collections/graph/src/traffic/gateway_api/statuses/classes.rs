//! The statuses of GatewayClasses (G05).

use sluice_engine::Collection;
use sluice_model::Kind;
use sluice_model::label;

use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::statuses::{StatusCondition, StatusDraft, StatusKey, StatusUpdate, is_of_revision};

/// Statuses of the GatewayClasses of our controllers that have to be written.
/// Key: `StatusKey`. From: `gateway_classes`. Changes when: the class or its status does. Size: classes that are not written
/// yet. Rejects: none.
pub(super) fn derive_class_statuses<'s>(
    objects: &ObjectCollections<'s>,
    options: &GraphOptions,
) -> Collection<'s, StatusKey, StatusUpdate> {
    let options = options.clone();
    objects.gateway_classes.flat_map("gateway_api/class_statuses", move |key, class| {
        let is_ours = options.gateway_api.writes_statuses
            && key.cluster == options.cluster
            && options.gateway_api.controller_named(&class.controller).is_some()
            && class.meta.labels.get(label::REVISION).is_none_or(|label| is_of_revision(label, &options.revision));
        let update = is_ours.then(|| {
            let mut draft = StatusDraft::new(&class.status);
            draft.set_conditions(&[StatusCondition::met("Accepted", "Accepted", "Handled by Istio controller")]);
            draft.finish()
        });
        update.flatten().map(|update| (StatusKey { kind: Kind::GatewayClass, object: key.clone() }, update))
    })
}
