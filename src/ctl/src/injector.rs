//! The `experimental injector list` subcommand (I07): which revision injects each namespace, and the webhooks that inject.

mod ca_bundle;
mod namespaces;
mod webhooks;

use std::io::{self, Write};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::analyze::live::{self, IGNORED_NAMESPACES};
use crate::answer_output::{fail, list, print, text};
use crate::check_inject::selection;
use crate::connect::QueryError;
use crate::connect::kubernetes::{KubeconfigCluster, current_thread};
use crate::inject_args::{InjectorCommand, InjectorListArgs};
use crate::tag::objects::MUTATING;

const EXIT_NOT_FOUND: u8 = 1;
/// The space between columns, as in istioctl.
const GAP: usize = 1;

/// What decides about injection in a cluster.
struct InjectionState {
    /// Those that injection can concern, by name.
    namespaces: Vec<Value>,
    /// MutatingWebhookConfigurations of Istio, by name.
    configurations: Vec<Value>,
    pods: Vec<Value>,
    /// ConfigMaps of the control plane's namespace and others.
    config_maps: Vec<Value>,
}

/// Runs a subcommand and returns the exit code.
pub(crate) fn run(command: &InjectorCommand, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let InjectorCommand::List(args) = command;
    let state = current_thread().and_then(|runtime| runtime.block_on(read(args)));
    match state {
        Ok(state) => print(args.output, &state.answer(Timestamp::now()), out, print_tables).map(|()| 0),
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

async fn read(args: &InjectorListArgs) -> Result<InjectionState, QueryError> {
    let cluster = KubeconfigCluster::of(&args.cluster).await?;
    let client = cluster.client();
    let all = async |plural: &str| live::list(&client, "api/v1", plural).await.map_err(QueryError::Cluster);
    let mut namespaces = all("namespaces").await?;
    if args.namespace.is_empty() {
        namespaces.retain(|namespace| can_be_injected(namespace, &args.istio_namespace));
    } else {
        namespaces.retain(|namespace| name_of(namespace) == args.namespace);
        if namespaces.is_empty() {
            return Err(QueryError::NotFound(format!("there is no namespace {:?}", args.namespace)));
        }
    }
    let configurations = cluster.read(MUTATING).await?;
    let mut configurations = list(&configurations, "items").to_vec();
    configurations.retain(selection::is_istio);
    for objects in [&mut namespaces, &mut configurations] {
        objects.sort_by(|a, b| name_of(a).cmp(name_of(b)));
    }
    Ok(InjectionState { namespaces, configurations, pods: all("pods").await?, config_maps: all("configmaps").await? })
}

/// Whether a namespace is neither one of Kubernetes, nor that of the control plane, nor one in ambient mode.
fn can_be_injected(namespace: &Value, istio_namespace: &str) -> bool {
    let (name, labels) = (name_of(namespace), &namespace["metadata"]["labels"]);
    let is_ambient = text(labels, "istio.io/dataplane-mode") == "ambient"
        && text(labels, "istio-injection") != "enabled"
        && text(labels, "istio.io/rev").is_empty();
    !IGNORED_NAMESPACES.contains(&name) && name != istio_namespace && !is_ambient
}

impl InjectionState {
    fn answer(&self, now: Timestamp) -> Value {
        let namespaces: Vec<Value> = self.namespaces.iter().map(|namespace| self.namespace(namespace)).collect();
        let injectors: Vec<Value> = self.configurations.iter().map(|it| self.injector(it, now)).collect();
        json!({"namespaces": namespaces, "injectors": injectors})
    }

    /// The revision that injects a pod with these labels.
    fn injecting_revision(&self, pod_labels: &Value, namespace_labels: &Value) -> Option<&str> {
        let injects = |it: &&Value| selection::of(it, pod_labels, namespace_labels).is_injected;
        self.configurations.iter().find(injects).map(|it| text(&it["metadata"]["labels"], "istio.io/rev"))
    }
}

fn name_of(object: &Value) -> &str {
    text(&object["metadata"], "name")
}

fn print_tables(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    namespaces::print_table(list(answer, "namespaces"), out)?;
    writeln!(out)?;
    webhooks::print_table(list(answer, "injectors"), out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_without_sidecars_are_left_out() {
        let namespace = |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}});
        let ambient = "istio.io/dataplane-mode";
        for (name, labels, expected) in [
            ("shop", Value::Null, true),
            ("kube-system", Value::Null, false),
            ("istio-system", Value::Null, false),
            ("shop", json!({ambient: "ambient"}), false),
            ("shop", json!({ambient: "ambient", "istio-injection": "enabled"}), true),
            ("shop", json!({ambient: "ambient", "istio.io/rev": "canary"}), true),
        ] {
            assert_eq!(can_be_injected(&namespace(name, labels.clone()), "istio-system"), expected, "{name} {labels}");
        }
    }
}
