//! The `experimental check-inject` subcommand (I07): which webhooks inject a pod, and why.

pub(crate) mod selection;

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::answer_output::{elements, fail, list, print, text};
use crate::columns::{print_columns, table};
use crate::connect::QueryError;
use crate::connect::kubernetes::{KubeconfigCluster, ProxyName, current_thread};
use crate::inject_args::CheckInjectArgs;

const EXIT_NOT_FOUND: u8 = 1;
const GAP: usize = 2;

/// Labels of a pod and of its namespace.
struct PodLabels {
    pod: Value,
    namespace: Value,
}

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &CheckInjectArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    match current_thread().and_then(|runtime| runtime.block_on(check(args))) {
        Ok(rows) => print(args.output, &rows, out, print_table).map(|()| 0),
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

/// A row for each configuration with webhooks of Istio, by name.
async fn check(args: &CheckInjectArgs) -> Result<Value, QueryError> {
    let cluster = KubeconfigCluster::of(&args.cluster).await?;
    let labels = read_labels(args, &cluster).await?;
    let configurations = cluster.read("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations").await?;
    let mut rows: Vec<Value> = list(&configurations, "items")
        .iter()
        .filter(|configuration| selection::is_istio(configuration))
        .map(|configuration| {
            let selection = selection::of(configuration, &labels.pod, &labels.namespace);
            json!({
                "webhook": configuration["metadata"]["name"],
                "revision": text(&configuration["metadata"]["labels"], "istio.io/rev"),
                "injected": selection.is_injected,
                "reason": selection.reason,
            })
        })
        .collect();
    rows.sort_by(|a, b| text(a, "webhook").cmp(text(b, "webhook")));
    Ok(rows.into())
}

async fn read_labels(args: &CheckInjectArgs, cluster: &KubeconfigCluster) -> Result<PodLabels, QueryError> {
    let (pod, namespace) = match &args.pod {
        Some(name) => {
            let name = ProxyName::parse(name, &args.namespace)?;
            (cluster.labels_of(&name).await?, name.namespace)
        }
        None => {
            let namespace = if args.namespace.is_empty() { "default" } else { &args.namespace };
            (stated_labels(&args.labels)?, namespace.to_owned())
        }
    };
    let object = cluster.find(&format!("/api/v1/namespaces/{namespace}")).await?;
    let object = object.ok_or_else(|| QueryError::NotFound(format!("there is no namespace {namespace:?}")))?;
    Ok(PodLabels { pod, namespace: object["metadata"]["labels"].clone() })
}

fn stated_labels(labels: &[String]) -> Result<Value, QueryError> {
    let mut stated = json!({});
    for label in labels {
        let invalid = || QueryError::Flags(format!("--labels {label:?}: NAME=VALUE is expected"));
        let (name, value) = label.trim().split_once('=').ok_or_else(invalid)?;
        let (name, value) = (name.trim(), value.trim_start_matches('=').trim());
        if name.is_empty() {
            return Err(invalid());
        }
        stated[name] = value.into();
    }
    Ok(stated)
}

fn print_table(rows: &Value, out: &mut dyn Write) -> io::Result<()> {
    let rows = elements(rows);
    if rows.is_empty() {
        return writeln!(out, "ERROR: no Istio injection hooks present.");
    }
    let is_injected = |row: &Value| row["injected"] == true;
    let cells = |row: &Value| {
        let mark = if is_injected(row) { "✔" } else { "✘" };
        [text(row, "webhook"), text(row, "revision"), mark, text(row, "reason")].map(str::to_owned).to_vec()
    };
    print_columns(&table(&["WEBHOOK", "REVISION", "INJECTED", "REASON"], rows.iter().map(cells)), GAP, out)?;
    if rows.iter().filter(|row| is_injected(row)).count() > 1 {
        writeln!(out, "ERROR: multiple webhooks will inject, which can lead to errors")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_names_with_values() {
        let labels = ["app=cart".to_owned(), "version==v1".to_owned(), "empty=".to_owned()];
        assert_eq!(stated_labels(&labels).expect("valid"), json!({"app": "cart", "version": "v1", "empty": ""}));
        for invalid in ["app", "=cart"] {
            assert_eq!(stated_labels(&[invalid.to_owned()]).expect_err(invalid).exit_code(1), 2);
        }
    }

    #[test]
    fn table_has_the_columns_of_istioctl() {
        let row = |name: &str, revision: &str, injected: bool, reason: &str| json!({"webhook": name, "revision": revision, "injected": injected, "reason": reason});
        let print = |rows: Value| {
            let mut out = Vec::new();
            print_table(&rows, &mut out).expect("written");
            String::from_utf8(out).expect("UTF-8")
        };
        assert_eq!(print(json!([])), "ERROR: no Istio injection hooks present.\n");
        let rows = [row("istio-sidecar-injector", "default", true, "a"), row("other", "canary", false, "b")];
        let expected = "\
WEBHOOK                 REVISION  INJECTED  REASON
istio-sidecar-injector  default   ✔         a
other                   canary    ✘         b
";
        assert_eq!(print(rows.into()), expected);
        let two = print(json!([row("a", "x", true, ""), row("b", "y", true, "")]));
        assert!(two.ends_with("ERROR: multiple webhooks will inject, which can lead to errors\n"), "{two}");
    }
}
