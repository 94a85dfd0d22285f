//! The readable difference of two messages, of the findings of two states, and notes about what happens outside of the graph.

use serde::Serialize;
use serde_json::Value;
use sluice_engine::{Key, Published, Snapshot};
use sluice_graph::Handles;
use sluice_model::Reject;

use super::objects::PreviewFinding;
use crate::answers::difference;

/// Fields that are listed for each resource.
const MAX_FIELDS: usize = 20;

/// A field that differs.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct FieldChange {
    path: String,
    /// The value before; absent if the field is added.
    #[serde(skip_serializing_if = "Option::is_none")]
    old: Option<Value>,
    /// The value after; absent if the field is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    new: Option<Value>,
}

/// The fields that differ, and the number of those that are not listed.
pub(super) fn changed_fields(before: &Value, after: &Value) -> (Vec<FieldChange>, usize) {
    let paths = difference(before, after);
    let left_out = paths.len().saturating_sub(MAX_FIELDS);
    let change = |path: &crate::answers::FieldPath| FieldChange {
        path: path.to_string(),
        old: path.get(before).cloned(),
        new: path.get(after).cloned(),
    };
    (paths.iter().take(MAX_FIELDS).map(change).collect(), left_out)
}

/// Findings that a change adds and removes.
#[derive(Default)]
pub(super) struct ChangedFindings {
    pub(super) added: Vec<PreviewFinding>,
    pub(super) removed: Vec<PreviewFinding>,
}

/// The findings about any object that differ between two states.
pub(super) fn changed_findings(before: &Snapshot, after: &Snapshot, handles: &Handles) -> ChangedFindings {
    let mut changed = ChangedFindings::default();
    for event in after.changes_since(before, &handles.rejects) {
        let rejects = |of: &Option<std::sync::Arc<Vec<Reject>>>| of.as_deref().cloned().unwrap_or_default();
        let (old, new) = (rejects(&event.old), rejects(&event.new));
        let only = |of: &[Reject], other: &[Reject]| -> Vec<PreviewFinding> {
            of.iter().filter(|reject| !other.contains(reject)).map(PreviewFinding::of_reject).collect()
        };
        changed.added.extend(only(&new, &old));
        changed.removed.extend(only(&old, &new));
    }
    changed
}

/// What the control plane would do because of the change before or beside sending resources.
pub(super) fn notes(before: &Snapshot, after: &Snapshot, handles: &Handles) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |count: usize, what: &str| {
        if count > 0 {
            notes.push(format!("{count} {what}"));
        }
    };
    let without = "the preview is without the result";
    note(added(before, after, &handles.wanted_jwks), &format!("key sets (JWKS) would be fetched: {without}"));
    note(added(before, after, &handles.gateway_names), &format!("host names of gateways would be resolved: {without}"));
    note(
        added(before, after, &handles.wanted_secret_reviews),
        &format!("service accounts would be reviewed for access to Secrets: {without}"),
    );
    let statuses = changed(before, after, &handles.address_updates)
        + changed(before, after, &handles.condition_updates)
        + changed(before, after, &handles.ingress_status_updates)
        + changed(before, after, &handles.status_updates);
    note(statuses, "statuses of objects would be written");
    notes
}

fn added<K: Key, V: Key>(before: &Snapshot, after: &Snapshot, of: &Published<K, V>) -> usize {
    after.changes_since(before, of).iter().filter(|event| event.old.is_none()).count()
}

fn changed<K: Key, V: Key>(before: &Snapshot, after: &Snapshot, of: &Published<K, V>) -> usize {
    after.changes_since(before, of).iter().filter(|event| event.new.is_some()).count()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_have_both_values() {
        let before = json!({"routes": [{"name": "a", "cluster": "v1"}], "timeout": "1s"});
        let after = json!({"routes": [{"name": "a", "cluster": "v2"}], "retries": 3});
        let (fields, left_out) = changed_fields(&before, &after);
        let expect = [
            ("retries", None, Some(json!(3))),
            ("routes[a].cluster", Some(json!("v1")), Some(json!("v2"))),
            ("timeout", Some(json!("1s")), None),
        ];
        let expect = expect.map(|(path, old, new)| FieldChange { path: path.to_owned(), old, new });
        assert_eq!((fields.as_slice(), left_out), (expect.as_slice(), 0));
        let many: serde_json::Map<_, _> = (0..30).map(|n| (n.to_string(), Value::from(n))).collect();
        assert_eq!(changed_fields(&json!({}), &many.into()).1, 10);
    }
}
