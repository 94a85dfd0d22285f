//! Conditions of ServiceEntries (S11).

use serde::Serialize;
use serde_json::Value;
use sluice_engine::Collection;
use sluice_model::{Labels, MeshConfig, ObjectKey, ServiceEntry, Text, Visibility};

use super::services::visibility;
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;

/// Condition with the visibility that the mesh config gives a ServiceEntry.
const VISIBILITY_APPLIED: &str = "istio.io/VisibilityApplied";

/// A condition of an object that differs from what it should be.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ConditionUpdate {
    /// All present conditions as JSON text; empty if there are none.
    pub is: Text,
    /// The type of the condition.
    pub condition: Text,
    /// Reason and message of the condition, whose status is `True`; `None` removes it.
    pub wanted: Option<(Text, Text)>,
}

/// ServiceEntries whose condition with their visibility must be written, in ambient mode. As in the reference, a ServiceEntry
/// that no client sees keeps the condition that it has.
/// Key: the entry. From: `service_entries`, `namespaces`, `mesh_config`.
/// Changes when: the visibility changes, or the status contains the condition.
/// Size: entries that are not written yet; none once all are written. Rejects: none.
pub(crate) fn derive_condition_updates<'s>(
    objects: &ObjectCollections<'s>,
    mesh: &Collection<'s, (), MeshConfig>,
    options: &GraphOptions,
) -> Collection<'s, ObjectKey, ConditionUpdate> {
    let enabled = options.ambient.is_some_and(|ambient| ambient.writes_conditions);
    let cluster = options.cluster.clone();
    let policies = mesh.map("condition_updates/policy", |(), mesh| mesh.service_entry_visibility.clone());
    objects.service_entries.derive("condition_updates", |deps| {
        let (policies, namespaces) = (deps.on(&policies), deps.on(&objects.namespaces));
        move |cx, key, entry| {
            if !enabled || key.cluster != cluster {
                return None;
            }
            let policy = cx.get(&policies, &()).and_then(|policy| (*policy).clone());
            let decided = policy.is_some().then(|| {
                let namespace = ObjectKey::new(key.cluster.clone(), "", key.namespace.clone());
                let labels = cx.get(&namespaces, &namespace).map_or_else(Labels::new, |it| it.labels.clone());
                visibility(policy.as_ref(), &labels)
            });
            let wanted = match decided {
                Some(Visibility::None) => return None,
                Some(Visibility::Public) => Some(("Public", "ServiceEntry is visible to the entire mesh (PUBLIC).")),
                Some(Visibility::Namespace) => Some((
                    "Namespace",
                    "ServiceEntry is visible only within its own namespace (NAMESPACE), per mesh serviceEntryVisibility.",
                )),
                None => None,
            };
            let wanted = wanted.map(|(reason, message)| (reason.into(), message.into()));
            let (present, is_true) = present(entry);
            let is_equal = present == wanted && (is_true || wanted.is_none());
            (!is_equal).then(|| ConditionUpdate {
                is: entry.conditions.clone(),
                condition: VISIBILITY_APPLIED.into(),
                wanted,
            })
        }
    })
}

/// Reason and message of the present condition, and whether its status is `True`.
fn present(entry: &ServiceEntry) -> (Option<(Text, Text)>, bool) {
    let conditions: Value = serde_json::from_str(&entry.conditions).unwrap_or_default();
    let found = conditions.as_array().into_iter().flatten().find(|condition| condition["type"] == VISIBILITY_APPLIED);
    let Some(found) = found else { return (None, false) };
    let text = |field: &str| Text::from(found[field].as_str().unwrap_or_default());
    (Some((text("reason"), text("message"))), found["status"] == "True")
}
