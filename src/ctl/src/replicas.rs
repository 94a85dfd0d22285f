//! Answers of several replicas as one: each replica knows the proxies that are connected to it only.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::answer_output::{list, text};
use crate::connect::{MissingReplicas, ReplicaAnswers};

/// Proxies of a preview that are named.
const MAX_NAMES: usize = 20;

/// Adds a number of another answer to a field.
fn add(value: &mut Value, other: &Value, field: &str) {
    let sum = value[field].as_u64().unwrap_or_default() + other[field].as_u64().unwrap_or_default();
    value[field] = sum.into();
}

/// The acknowledgements of a resource by the proxies of all replicas (`frontier`).
pub(crate) fn sum_frontiers(frontier: &mut Value, others: &[Value]) {
    for other in others {
        for field in ["interested", "sent", "acked"] {
            add(frontier, other, field);
        }
        for (proxy, error) in other["rejected"].as_object().into_iter().flatten() {
            frontier["rejected"][proxy] = error.clone();
        }
    }
}

/// One preview of those of all replicas. Objects and findings are those of the first one, because all replicas read the same
/// objects. It is not complete if replicas are missing. `None` without a replica.
pub(crate) fn sum_previews(answers: ReplicaAnswers, missing: &MissingReplicas) -> Option<Value> {
    let replicas: Vec<Value> = answers
        .iter()
        .map(|(name, answer)| {
            json!({"name": name, "epoch": answer["epoch"], "connected": answer["proxies"]["connected"]})
        })
        .collect();
    let mut answers = answers.into_iter().map(|(_, answer)| answer);
    let mut sum = answers.next()?;
    for other in answers {
        for field in ["bytes", "changesLeftOut"] {
            add(&mut sum, &other, field);
        }
        for field in ["count", "connected"] {
            add(&mut sum["proxies"], &other["proxies"], field);
        }
        if let Some(names) = sum["proxies"]["names"].as_array_mut() {
            names.extend(list(&other["proxies"], "names").iter().cloned());
            names.truncate(MAX_NAMES);
        }
        if other["isComplete"] == false {
            sum["isComplete"] = false.into();
        }
        add_notes(&mut sum, &other);
        add_types(&mut sum, &other);
        add_changes(&mut sum, &other);
    }
    if replicas.len() > 1 {
        count_names(&mut sum);
    }
    sum["replicas"] = replicas.into();
    missing.add_to(&mut sum);
    if !list(&sum, "unansweredReplicas").is_empty() {
        sum["isComplete"] = false.into();
    }
    Some(sum)
}

fn add_notes(sum: &mut Value, other: &Value) {
    let Some(notes) = sum["notes"].as_array_mut() else { return };
    for note in list(other, "notes") {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
}

/// Proxies and bytes by type are added. A resource that several replicas have is one, so of their numbers the greatest is kept.
fn add_types(sum: &mut Value, other: &Value) {
    let Some(types) = sum["resources"].as_array_mut() else { return };
    for summary in list(other, "resources") {
        match types.iter_mut().find(|known| known["type"] == summary["type"]) {
            None => types.push(summary.clone()),
            Some(known) => {
                for field in ["proxies", "bytes"] {
                    add(known, summary, field);
                }
                for field in ["added", "changed", "removed"] {
                    let greatest = known[field].as_u64().max(summary[field].as_u64());
                    known[field] = greatest.into();
                }
            }
        }
    }
}

/// The same change of the same resource is one, with the proxies of both.
fn add_changes(sum: &mut Value, other: &Value) {
    let Some(changes) = sum["changes"].as_array_mut() else { return };
    let same = ["type", "name", "change", "bytesBefore", "bytesAfter", "parts", "fields"];
    for change in list(other, "changes") {
        match changes.iter_mut().find(|known| same.iter().all(|field| known.get(field) == change.get(field))) {
            Some(known) => add(known, change, "proxies"),
            None => changes.push(change.clone()),
        }
    }
}

/// Counts resources by the listed changes. If not all are listed, the numbers of the types are lower bounds.
fn count_names(sum: &mut Value) {
    if sum["changesLeftOut"] != 0 {
        sum["isComplete"] = false.into();
        return;
    }
    let mut names: BTreeMap<(String, String), String> = BTreeMap::new();
    for change in list(sum, "changes") {
        let key = (text(change, "type").to_owned(), text(change, "name").to_owned());
        names.entry(key).or_insert_with(|| text(change, "change").to_owned());
    }
    for summary in sum["resources"].as_array_mut().into_iter().flatten() {
        let kind = text(summary, "type").to_owned();
        let count =
            |change: &str| names.iter().filter(|((of, _), found)| *of == kind && found.as_str() == change).count();
        for change in ["added", "changed", "removed"] {
            summary[change] = count(change).into();
        }
    }
}

/// The progress of a wait at one replica after those of others: the sum, and the state that comes last.
pub(crate) fn add_progress(sum: Option<Value>, next: Value) -> Value {
    let Some(sum) = sum else { return next };
    // A change is done when it is done at all replicas.
    let rank =
        |progress: &Value| ["done", "timed-out", "rejected"].iter().position(|state| progress["state"] == *state);
    let (mut kept, other) = if rank(&next) > rank(&sum) { (next, sum) } else { (sum, next) };
    if other["proxies"].is_object() {
        if !kept["proxies"].is_object() {
            kept["proxies"] = json!({"concerned": 0, "acked": 0, "lagging": []});
        }
        for field in ["concerned", "acked"] {
            add(&mut kept["proxies"], &other["proxies"], field);
        }
        let lagging: Vec<Value> = list(&other["proxies"], "lagging").to_vec();
        if let Some(all) = kept["proxies"]["lagging"].as_array_mut() {
            all.extend(lagging);
        } else if !lagging.is_empty() {
            kept["proxies"]["lagging"] = lagging.into();
        }
    }
    let waited = |progress: &Value| progress["waitedSeconds"].as_f64().unwrap_or_default();
    kept["waitedSeconds"] = (waited(&kept) + waited(&other)).into();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preview(proxies: u64, changes: &[(&str, u64)]) -> Value {
        let change = |(name, bytes): &(&str, u64)| json!({"type": "rds", "name": name, "change": "changed", "bytesAfter": bytes, "proxies": proxies, "example": "x"});
        json!({
            "epoch": 7, "objects": [{"object": "a"}], "findings": [], "solved": [], "notes": ["n"],
            "resources": [{"type": "rds", "added": 0, "changed": changes.len(), "removed": 0, "proxies": proxies, "bytes": 10}],
            "changes": changes.iter().map(change).collect::<Vec<_>>(), "changesLeftOut": 0,
            "proxies": {"count": proxies, "connected": 2 * proxies, "names": ["p"]}, "bytes": 10, "isComplete": true,
        })
    }

    #[test]
    fn previews_are_added_and_equal_changes_are_one() {
        let answers = vec![
            ("istiod-a".to_owned(), preview(3, &[("80", 20), ("90", 5)])),
            ("istiod-b".to_owned(), preview(4, &[("80", 20), ("80", 21), ("70", 1)])),
        ];
        let sum = sum_previews(answers, &MissingReplicas::default()).expect("two answers");
        assert_eq!(sum["proxies"], json!({"count": 7, "connected": 14, "names": ["p", "p"]}));
        assert_eq!((&sum["bytes"], &sum["isComplete"], &sum["notes"]), (&json!(20), &json!(true), &json!(["n"])));
        let summary = json!({"type": "rds", "added": 0, "changed": 3, "removed": 0, "proxies": 7, "bytes": 20});
        assert_eq!(sum["resources"], json!([summary]), "80, 90 and 70");
        let proxies: Vec<_> =
            list(&sum, "changes").iter().map(|change| (&change["name"], &change["proxies"])).collect();
        let expect = [("80", 7), ("90", 3), ("80", 4), ("70", 4)].map(|(name, count)| (json!(name), json!(count)));
        assert_eq!(proxies, expect.iter().map(|(name, count)| (name, count)).collect::<Vec<_>>());
        assert_eq!(sum["replicas"][1], json!({"name": "istiod-b", "epoch": 7, "connected": 8}));
        assert_eq!(sum_previews(Vec::new(), &MissingReplicas::default()), None);
    }

    #[test]
    fn numbers_are_lower_bounds_if_changes_are_left_out() {
        let mut cut = preview(1, &[("80", 1)]);
        cut["changesLeftOut"] = 5.into();
        let answers = vec![("a".to_owned(), preview(1, &[])), ("b".to_owned(), cut)];
        let sum = sum_previews(answers, &MissingReplicas::default()).expect("two answers");
        assert_eq!((&sum["isComplete"], &sum["resources"][0]["changed"]), (&json!(false), &json!(1)));
    }

    #[test]
    fn a_wait_is_done_when_it_is_done_everywhere() {
        let progress = |state: &str, acked: u64, concerned: u64| json!({"state": state, "waitedSeconds": 0.5, "proxies": {"concerned": concerned, "acked": acked, "lagging": []}});
        let done = add_progress(Some(progress("done", 2, 2)), progress("done", 3, 3));
        assert_eq!(
            (&done["state"], &done["proxies"]["acked"], &done["waitedSeconds"]),
            (&json!("done"), &json!(5), &json!(1.0))
        );
        let late = add_progress(Some(progress("timed-out", 1, 2)), progress("done", 3, 3));
        assert_eq!((&late["state"], &late["proxies"]["concerned"]), (&json!("timed-out"), &json!(5)));
        let rejected = add_progress(Some(progress("timed-out", 1, 2)), json!({"state": "rejected"}));
        assert_eq!((&rejected["state"], &rejected["proxies"]["acked"]), (&json!("rejected"), &json!(1)));
    }

    #[test]
    fn frontiers_are_added() {
        let mut frontier = json!({"interested": 2, "sent": 2, "acked": 1, "rejected": {"a": "bad"}});
        sum_frontiers(&mut frontier, &[json!({"interested": 3, "sent": 3, "acked": 3, "rejected": {"b": "worse"}})]);
        assert_eq!(frontier, json!({"interested": 5, "sent": 5, "acked": 4, "rejected": {"a": "bad", "b": "worse"}}));
    }
}
