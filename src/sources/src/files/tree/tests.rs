use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Tree;
use crate::{Change, Cluster, Reporter};

/// A directory in memory.
struct Directory {
    tree: Tree,
    reporter: Reporter,
    texts: BTreeMap<String, String>,
}

impl Directory {
    fn new(is_remote: bool) -> Self {
        let reporter = Reporter::default();
        Self {
            tree: Tree::new(
                Cluster {
                    id: "c".into(),
                    domain: "cluster.local".into(),
                    is_remote,
                    reads_remote_gateways: true,
                    ignored: BTreeSet::new(),
                    revision: "canary".into(),
                    multi_cluster_api: sluice_model::MultiClusterApi::default(),
                },
                reporter.clone(),
            ),
            reporter,
            texts: BTreeMap::new(),
        }
    }

    fn set(&mut self, file: &str, text: &str) -> Vec<String> {
        self.texts.insert(file.to_owned(), text.to_owned());
        let texts = &self.texts;
        let reread = |path: &Path| texts.get(&path.display().to_string()).cloned();
        display_all(self.tree.set(Path::new(file), text, reread))
    }

    fn remove(&mut self, file: &str) -> Vec<String> {
        self.texts.remove(file);
        let texts = &self.texts;
        let reread = |path: &Path| texts.get(&path.display().to_string()).cloned();
        display_all(self.tree.remove(Path::new(file), reread))
    }

    fn problems(&self) -> Vec<String> {
        let problems = self.reporter.problems();
        problems.into_iter().map(|(file, problem)| format!("{file}:{}: {}", problem.line, problem.reason)).collect()
    }
}

fn display_all(changes: Vec<Change>) -> Vec<String> {
    let show = |change: Change| {
        let sign = if change.object.is_some() { '+' } else { '-' };
        format!("{sign}{} {}/{} {}", change.kind, change.key.namespace, change.key.name, change.origin.place)
    };
    changes.into_iter().map(show).collect()
}

fn service(name: &str, port: u16) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  ports: [{{port: {port}}}]\n")
}

#[test]
fn configuration_for_another_revision_is_not_read() {
    let mut directory = Directory::new(false);
    let labelled = |kind: &str, revision: &str| {
        let metadata = format!("metadata: {{name: a, namespace: n, labels: {{istio.io/rev: {revision}}}}}");
        format!("apiVersion: {kind}\n{metadata}\nspec: {{}}\n")
    };
    let sidecar = "networking.istio.io/v1\nkind: Sidecar";
    assert_eq!(directory.set("a.yaml", &labelled(sidecar, "stable")), [""; 0]);
    assert_eq!(directory.set("a.yaml", &labelled(sidecar, "canary")), ["+Sidecar n/a a.yaml:1"]);
    assert_eq!(directory.set("a.yaml", &labelled(sidecar, "stable")), ["-Sidecar n/a a.yaml"]);
    assert_eq!(directory.set("b.yaml", &labelled("v1\nkind: Service", "stable")), ["+Service n/a b.yaml:1"]);
    let gateway = labelled("gateway.networking.k8s.io/v1\nkind: Gateway", "stable");
    assert_eq!(directory.set("c.yaml", &gateway), ["+KubernetesGateway n/a c.yaml:1"]);
}

#[test]
fn a_change_in_a_file_is_a_diff_by_object() {
    let mut directory = Directory::new(false);
    let text = |a, b| format!("{}---\n{}", service("a", a), service("b", b));
    assert_eq!(directory.set("x.yaml", &text(1, 2)), ["+Service default/a x.yaml:1", "+Service default/b x.yaml:7"]);
    assert!(directory.set("x.yaml", &text(1, 2)).is_empty());
    assert_eq!(directory.set("x.yaml", &text(1, 3)), ["+Service default/b x.yaml:7"]);
    assert_eq!(directory.set("x.yaml", &service("b", 3)), ["-Service default/a x.yaml"]);
    assert_eq!(directory.remove("x.yaml"), ["-Service default/b x.yaml"]);
    assert_eq!(directory.tree.len(), 0);
}

#[test]
fn text_that_does_not_parse_keeps_the_objects_it_does_not_contain() {
    let mut directory = Directory::new(false);
    directory.set("x.yaml", &format!("{}---\n{}---\n{}", service("a", 1), service("b", 2), service("c", 3)));
    // `c` is not written yet, `b` is incomplete, `a` has changed.
    let incomplete = format!("{}---\napiVersion: v1\nkind: Service\nmetadata: {{name: b", service("a", 9));
    assert_eq!(directory.set("x.yaml", &incomplete), ["+Service default/a x.yaml:1"]);
    assert!(directory.problems()[0].starts_with("x.yaml:"), "{:?}", directory.problems());
    // The complete file has no `c`, and another `b`.
    let complete = format!("{}---\n{}", service("a", 9), service("b", 8));
    assert_eq!(directory.set("x.yaml", &complete), ["+Service default/b x.yaml:7", "-Service default/c x.yaml"]);
    assert!(directory.problems().is_empty());
}

#[test]
fn last_of_several_declarations_is_used() {
    let mut directory = Directory::new(false);
    assert_eq!(directory.set("b.yaml", &service("a", 1)), ["+Service default/a b.yaml:1"]);
    assert!(directory.set("a.yaml", &service("a", 2)).is_empty());
    assert_eq!(directory.set("c.yaml", &service("a", 3)), ["+Service default/a c.yaml:1"]);
    assert_eq!(directory.remove("c.yaml"), ["+Service default/a b.yaml:1"]);
    // The same text in another file is no change.
    assert!(directory.set("c.yaml", &service("a", 1)).is_empty());
    assert!(directory.remove("b.yaml").is_empty());
    assert_eq!(directory.remove("c.yaml"), ["+Service default/a a.yaml:1"]);
    assert_eq!(directory.remove("a.yaml"), ["-Service default/a a.yaml"]);
    let twice = format!("{}---\n{}", service("a", 1), service("a", 2));
    assert_eq!(directory.set("x.yaml", &twice), ["+Service default/a x.yaml:7"]);
    assert_eq!(directory.set("x.yaml", &service("a", 1)), ["+Service default/a x.yaml:1"]);
}

#[test]
fn items_of_lists_are_objects() {
    let mut directory = Directory::new(false);
    let list = r#"{"apiVersion": "v1", "kind": "ServiceList", "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]}"#;
    assert_eq!(directory.set("x.json", list), ["+Service default/a x.json:1", "+Service default/b x.json:1"]);
    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Namespace\n  metadata: {name: n}\n";
    assert_eq!(directory.set("y.yaml", list), ["+Namespace /n y.yaml:1"]);
}

#[test]
fn documents_that_are_not_objects_are_skipped() {
    let mut directory = Directory::new(false);
    let text = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\n---\n- a list\n---\njust text\n---\nkind: Service\n---\n{}",
        service("a", 1)
    );
    assert_eq!(directory.set("x.yaml", &text), ["+Service default/a x.yaml:11"]);
    assert!(directory.problems().is_empty());
}

#[test]
fn remote_directories_are_read_for_services_and_workloads_only() {
    let mut directory = Directory::new(true);
    let text = format!(
        "{}---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: v}}\nspec: {{}}\n",
        service("a", 1)
    );
    assert_eq!(directory.set("x.yaml", &text), ["+Service default/a x.yaml:1"]);
}

#[test]
fn gateways_of_remote_directories_are_read_for_every_revision() {
    let mut directory = Directory::new(true);
    let gateway = |kind: &str, revision: &str| {
        let metadata = format!("metadata: {{name: a, namespace: n, labels: {{istio.io/rev: {revision}}}}}");
        format!("apiVersion: {kind}\n{metadata}\nspec: {{gatewayClassName: istio-east-west, listeners: []}}\n")
    };
    let kind = "gateway.networking.k8s.io/v1\nkind: Gateway";
    assert_eq!(directory.set("a.yaml", &gateway(kind, "stable")), ["+KubernetesGateway n/a a.yaml:1"]);
    assert!(directory.set("b.yaml", &gateway("networking.istio.io/v1\nkind: Gateway", "canary")).is_empty());
    assert_eq!(directory.remove("a.yaml"), ["-KubernetesGateway n/a a.yaml"]);
}
