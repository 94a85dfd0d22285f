//! The `experimental revision` subcommands (I09): the revisions of the control plane, and what belongs to each.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::analyze::live;
use crate::answer_output::{elements, fail, joined, list, print, text};
use crate::columns::{columns, table};
use crate::connect::QueryError;
use crate::connect::kubernetes::{KubeconfigCluster, current_thread};
use crate::tag::objects::{RevisionObjects, revision_of, tag_of};
use crate::tag_args::{RevisionCommand, TagTargetArgs};

const EXIT_NOT_FOUND: u8 = 1;
/// Kinds of gateways: the key in the description, the label `istio`, and the label of their component.
const GATEWAYS: [(&str, &str, &str); 2] = [
    // The key is istioctl's.
    ("ingess_gateways", "ingressgateway", "IngressGateways"),
    ("egress_gateways", "egressgateway", "EgressGateways"),
];
const POD_TITLES: [&str; 5] = ["NAMESPACE", "NAME", "ADDRESS", "STATUS", "AGE"];

/// Runs a subcommand and returns the exit code.
pub(crate) fn run(command: &RevisionCommand, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let (target, output) = match command {
        RevisionCommand::List(args) => (&args.target, args.output),
        RevisionCommand::Describe(args) => (&args.target, args.output),
    };
    let answer = current_thread().and_then(|runtime| runtime.block_on(read(target))).and_then(|state| match command {
        RevisionCommand::List(_) => Ok((state.revisions(), print_list as fn(&Value, &mut dyn Write) -> io::Result<()>)),
        RevisionCommand::Describe(args) => {
            let known = state.revisions();
            let known: Vec<&str> = elements(&known).iter().map(|it| text(it, "revision")).collect();
            if !known.contains(&args.revision.as_str()) {
                let names = known.join(", ");
                let reason = format!("there is no revision {:?}; the revisions are: {names}", args.revision);
                return Err(QueryError::NotFound(reason));
            }
            Ok((state.description(&args.revision, Timestamp::now()), print_description as _))
        }
    });
    match answer {
        Ok((answer, table)) => print(output, &answer, out, table).map(|()| 0),
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

/// What is known about the revisions of a cluster.
struct ClusterState {
    objects: RevisionObjects,
    pods: Vec<Value>,
    istio_namespace: String,
}

async fn read(target: &TagTargetArgs) -> Result<ClusterState, QueryError> {
    let cluster = KubeconfigCluster::of(&target.cluster).await?;
    let objects = RevisionObjects::read(&cluster, &target.istio_namespace).await?;
    let pods = live::list(&cluster.client(), "api/v1", "pods").await.map_err(QueryError::Cluster)?;
    Ok(ClusterState { objects, pods, istio_namespace: target.istio_namespace.clone() })
}

impl ClusterState {
    /// Pods of the control plane.
    fn control_plane(&self) -> impl Iterator<Item = &Value> {
        self.pods.iter().filter(|pod| {
            let metadata = &pod["metadata"];
            metadata["namespace"] == self.istio_namespace.as_str() && metadata["labels"]["app"] == "istiod"
        })
    }

    /// Each revision with its tags, its pods, and the namespaces whose label names it or a tag of it.
    fn revisions(&self) -> Value {
        let mut tags: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for object in self.objects.webhooks.iter().chain(&self.objects.services).chain(self.control_plane()) {
            if let Some(revision) = revision_of(object) {
                tags.entry(revision).or_default().extend(tag_of(object));
            }
        }
        let described = tags.into_iter().map(|(revision, tags)| {
            let pods = self.control_plane().filter(|pod| revision_of(pod) == Some(revision)).count();
            let names = std::iter::once(revision).chain(tags.iter().copied());
            let namespaces: BTreeSet<&str> = names.flat_map(|name| self.objects.namespaces_of(name)).collect();
            json!({"revision": revision, "tags": tags, "controlPlanePods": pods, "namespaces": namespaces})
        });
        described.collect()
    }

    /// A revision, with the names of fields of istioctl.
    fn description(&self, revision: &str, now: Timestamp) -> Value {
        let webhooks = self.objects.webhooks.iter().filter(|webhook| revision_of(webhook) == Some(revision));
        let webhooks: Vec<Value> = webhooks
            .map(|webhook| {
                let name = text(&webhook["metadata"], "name");
                json!({"name": name, "revision": revision, "tag": tag_of(webhook).unwrap_or_default()})
            })
            .collect();
        let of_control_plane = self.control_plane().filter(|pod| revision_of(pod) == Some(revision));
        let control_plane: Vec<Value> = of_control_plane.map(|pod| summary(pod, now)).collect();
        let mut description = json!({"webhooks": webhooks, "control_plane_pods": control_plane});
        let mut namespaces: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        let users = self.pods.iter().filter(|pod| uses(pod, revision));
        for pod in users.filter(|pod| pod["metadata"]["labels"]["app"] != "istiod") {
            let labels = &pod["metadata"]["labels"];
            let gateway = GATEWAYS.iter().find(|(_, istio, component)| {
                labels["istio"] == *istio || labels["operator.istio.io/component"] == *component
            });
            let Some((key, ..)) = gateway else {
                namespaces.entry(text(&pod["metadata"], "namespace")).or_default().push(summary(pod, now));
                continue;
            };
            match &mut description[*key] {
                Value::Array(gateways) => gateways.push(summary(pod, now)),
                absent => *absent = json!([summary(pod, now)]),
            }
        }
        let namespaces: Map<String, Value> = namespaces
            .into_iter()
            .map(|(namespace, pods)| (namespace.to_owned(), json!({"name": namespace, "pods": pods})))
            .collect();
        description["namespace_summary"] = namespaces.into();
        description
    }
}

/// Whether a revision has injected a pod, or a label selects it for the pod.
fn uses(pod: &Value, revision: &str) -> bool {
    let by_annotation = pod["metadata"]["annotations"]["istio.io/rev"].as_str();
    by_annotation.or_else(|| revision_of(pod)) == Some(revision)
}

fn summary(pod: &Value, now: Timestamp) -> Value {
    let created = text(&pod["metadata"], "creationTimestamp").parse::<Timestamp>();
    json!({
        "namespace": pod["metadata"]["namespace"],
        "name": pod["metadata"]["name"],
        "address": text(&pod["status"], "podIP"),
        "status": text(&pod["status"], "phase"),
        "age": created.map(|created| age(now.as_second() - created.as_second())).unwrap_or_default(),
    })
}

/// A time in seconds in its largest unit.
fn age(seconds: i64) -> String {
    match seconds.max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

fn print_list(revisions: &Value, out: &mut dyn Write) -> io::Result<()> {
    if elements(revisions).is_empty() {
        return writeln!(out, "No Istio revisions found.");
    }
    let row = |it: &Value| {
        let tags = joined(it, "tags", ",");
        let tags = if tags.is_empty() { "<no-tag>".to_owned() } else { tags };
        vec![text(it, "revision").to_owned(), tags, it["controlPlanePods"].to_string(), joined(it, "namespaces", ",")]
    };
    columns(&table(&["REVISION", "TAG", "PODS", "NAMESPACES"], elements(revisions).iter().map(row)), out)
}

fn print_description(description: &Value, out: &mut dyn Write) -> io::Result<()> {
    let webhook = |it: &Value| ["name", "tag"].map(|field| text(it, field).to_owned()).to_vec();
    writeln!(out, "Webhooks:")?;
    columns(&table(&["NAME", "TAG"], list(description, "webhooks").iter().map(webhook)), out)?;
    let fields = ["namespace", "name", "address", "status", "age"];
    let pod = |it: &Value| fields.map(|field| text(it, field).to_owned()).to_vec();
    let groups = [
        ("Control plane", "control_plane_pods"),
        ("Ingress gateways", GATEWAYS[0].0),
        ("Egress gateways", GATEWAYS[1].0),
    ];
    let all = description["namespace_summary"].as_object().into_iter().flatten();
    let users: Vec<Value> = all.flat_map(|(_, namespace)| list(namespace, "pods").to_vec()).collect();
    let groups = groups.map(|(title, key)| (title, list(description, key)));
    for (title, pods) in groups.into_iter().chain([("Pods", users.as_slice())]) {
        writeln!(out, "\n{title}:")?;
        match pods.is_empty() {
            true => writeln!(out, "none")?,
            false => columns(&table(&POD_TITLES, pods.iter().map(pod)), out)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> ClusterState {
        let object = |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}});
        let pod = |namespace: &str, name: &str, labels: Value, annotations: Value| {
            json!({
                "metadata": {
                    "namespace": namespace, "name": name, "labels": labels, "annotations": annotations,
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                },
                "status": {"phase": "Running", "podIP": "10.0.0.1"},
            })
        };
        let canary = json!({"istio.io/rev": "canary"});
        ClusterState {
            objects: RevisionObjects {
                webhooks: vec![
                    object("own", canary.clone()),
                    object("tag", json!({"istio.io/rev": "canary", "istio.io/tag": "prod"})),
                    object("default", json!({"istio.io/rev": "default"})),
                ],
                validators: Vec::new(),
                services: Vec::new(),
                namespaces: vec![object("shop", json!({"istio.io/rev": "prod"})), object("next", canary)],
            },
            pods: vec![
                pod("istio-system", "istiod-canary-1", json!({"app": "istiod", "istio.io/rev": "canary"}), Value::Null),
                pod("shop", "cart", json!({"app": "cart"}), json!({"istio.io/rev": "canary"})),
                pod("shop", "edge", json!({"istio": "ingressgateway"}), json!({"istio.io/rev": "canary"})),
                pod("shop", "other", json!({"istio.io/rev": "canary"}), json!({"istio.io/rev": "default"})),
            ],
            istio_namespace: "istio-system".to_owned(),
        }
    }

    #[test]
    fn revisions_are_listed_with_tags_pods_and_namespaces() {
        let mut out = Vec::new();
        print_list(&state().revisions(), &mut out).expect("written");
        let expected = "\
REVISION   TAG        PODS   NAMESPACES
canary     prod       1      next,shop
default    <no-tag>   0
";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn description_has_the_pods_that_the_revision_has_injected() {
        let now = "2026-01-04T00:00:00Z".parse().expect("a time");
        let description = state().description("canary", now);
        let names = |pods: &Value| elements(pods).iter().map(|pod| text(pod, "name").to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&description["webhooks"]), ["own", "tag"]);
        assert_eq!(names(&description["control_plane_pods"]), ["istiod-canary-1"]);
        assert_eq!(names(&description["ingess_gateways"]), ["edge"]);
        assert_eq!(names(&description["namespace_summary"]["shop"]["pods"]), ["cart"]);
        assert_eq!(description["control_plane_pods"][0]["age"], "3d");
        let mut out = Vec::new();
        print_description(&description, &mut out).expect("written");
        let text = String::from_utf8_lossy(&out);
        assert!(text.contains("\nEgress gateways:\nnone\n") && text.contains("cart"), "{text}");
    }
}
