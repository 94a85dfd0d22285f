//! Tables of waypoints.

use serde_json::Value;

use super::cluster::WAYPOINT_FOR;
use crate::answer_output::{elements, list, text};
use crate::columns::table;

/// `NAME`, `REVISION`, `TRAFFIC TYPE` and `PROGRAMMED` of each waypoint.
pub(super) fn list_table(waypoints: &Value, with_namespace: bool) -> Vec<Vec<String>> {
    let row = |it: &Value| {
        let labels = &it["metadata"]["labels"];
        let label = |name: &str, default: &str| {
            let value = text(labels, name);
            if value.is_empty() { default.to_owned() } else { value.to_owned() }
        };
        let programmed = programmed(it).map_or("False", |condition| text(condition, "status"));
        vec![label("istio.io/rev", "default"), label(WAYPOINT_FOR, "none"), programmed.to_owned()]
    };
    rows(waypoints, with_namespace, &["REVISION", "TRAFFIC TYPE", "PROGRAMMED"], row)
}

/// The condition of each waypoint: `Programmed`, or else the last one.
pub(super) fn status_table(waypoints: &Value, with_namespace: bool) -> Vec<Vec<String>> {
    let row = |it: &Value| {
        let condition = programmed(it).or_else(|| list(&it["status"], "conditions").last()).unwrap_or(&Value::Null);
        ["status", "type", "reason", "message"].map(|field| text(condition, field).to_owned()).to_vec()
    };
    rows(waypoints, with_namespace, &["STATUS", "TYPE", "REASON", "MESSAGE"], row)
}

fn rows(
    waypoints: &Value,
    with_namespace: bool,
    titles: &[&'static str],
    row: impl Fn(&Value) -> Vec<String>,
) -> Vec<Vec<String>> {
    let names: &[&str] = if with_namespace { &["namespace", "name"] } else { &["name"] };
    let first: Vec<String> = names.iter().map(|name| name.to_uppercase()).collect();
    let titles: Vec<&str> = first.iter().map(String::as_str).chain(titles.iter().copied()).collect();
    let cells = |it: &Value| {
        let own = names.iter().map(|name| text(&it["metadata"], name).to_owned());
        own.chain(row(it)).collect::<Vec<_>>()
    };
    table(&titles, elements(waypoints).iter().map(cells))
}

fn programmed(waypoint: &Value) -> Option<&Value> {
    list(&waypoint["status"], "conditions").iter().find(|condition| text(condition, "type") == "Programmed")
}

/// Whether the condition `Programmed` is true.
pub(super) fn is_programmed(waypoint: &Value) -> bool {
    programmed(waypoint).is_some_and(|condition| text(condition, "status") == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::GAP;
    use super::*;
    use crate::columns::print_columns;

    fn waypoints() -> Value {
        let condition =
            |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "Why", "message": "a text"});
        json!([
            {"metadata": {"name": "waypoint", "namespace": "shop", "labels": {"istio.io/rev": "canary", WAYPOINT_FOR: "all"}},
             "status": {"conditions": [condition("Accepted", "True"), condition("Programmed", "True")]}},
            {"metadata": {"name": "other", "namespace": "shop"}, "status": {"conditions": [condition("Accepted", "True")]}},
        ])
    }

    fn printed(rows: &[Vec<String>]) -> String {
        let mut out = Vec::new();
        print_columns(rows, GAP, &mut out).expect("written");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn tables_have_the_columns_of_istioctl() {
        let expected = "\
NAMESPACE     NAME         REVISION     TRAFFIC TYPE     PROGRAMMED
shop          waypoint     canary       all              True
shop          other        default      none             False
";
        assert_eq!(printed(&list_table(&waypoints(), true)), expected);
        let expected = "\
NAME         STATUS     TYPE           REASON     MESSAGE
waypoint     True       Programmed     Why        a text
other        True       Accepted       Why        a text
";
        assert_eq!(printed(&status_table(&waypoints(), false)), expected);
    }

    #[test]
    fn only_the_condition_programmed_counts() {
        let waypoints = waypoints();
        assert!(is_programmed(&waypoints[0]) && !is_programmed(&waypoints[1]) && !is_programmed(&Value::Null));
    }
}
