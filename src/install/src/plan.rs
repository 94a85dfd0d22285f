//! What an operation changes in a cluster, before it does so.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use similar::TextDiff;

use crate::cluster::{TargetCluster, Write};
use crate::error::InstallError;
use crate::manifest::Manifest;
use crate::object::{KubeObject, ObjectKey, step};
use crate::operator::{Component, Installation};
use crate::ownership::{self, KINDS, SERVICE_MONITOR, component_of, helm_release};

/// Lines around a change that a diff shows.
const CONTEXT_LINES: usize = 3;

/// What happens to an object.
#[derive(Clone, Debug)]
pub enum Action {
    /// It is created.
    Create,
    /// It is changed. The object before, and as the API server will store it.
    Change {
        /// The object before.
        before: Box<KubeObject>,
        /// The object afterwards.
        after: Box<KubeObject>,
    },
    /// It stays as it is.
    Keep,
    /// It is deleted. The object before.
    Delete(Box<KubeObject>),
}

/// A step of a plan.
#[derive(Clone, Debug)]
pub struct ObjectChange {
    /// The component that has the object.
    pub component: Component,
    /// The rendered object; for a deletion, the object of the cluster.
    pub object: KubeObject,
    /// What happens to it.
    pub action: Action,
}

/// A plan: all objects of an installation, then those that are deleted.
#[derive(Clone, Debug, Default)]
pub struct ChangePlan {
    /// The steps in their order.
    pub changes: Vec<ObjectChange>,
}

/// How many objects a plan changes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Objects that are created.
    pub created: usize,
    /// Objects that are changed.
    pub changed: usize,
    /// Objects that stay as they are.
    pub kept: usize,
    /// Objects that are deleted.
    pub deleted: usize,
}

impl ChangePlan {
    /// Compares rendered objects with those of a cluster. The API server validates each of them, but stores nothing.
    ///
    /// # Errors
    /// The API server refuses an object or does not answer, or a release of helm has an object.
    pub async fn of_installation(
        installation: &Installation,
        manifests: &[Manifest],
        cluster: &TargetCluster,
    ) -> Result<Self, InstallError> {
        let mut plan = Self::default();
        let missing = plan.add_namespaces(installation, manifests, cluster).await?;
        let mut rendered = Vec::new();
        for manifest in manifests {
            for object in &manifest.objects {
                let object = placed(object, &manifest.objects, installation, cluster).await?;
                rendered.push(object.key().clone());
                let action = compare(&object, cluster, missing.contains(&object.key().namespace)).await?;
                plan.changes.push(ObjectChange { component: manifest.component, object, action });
            }
        }
        let mut obsolete = Vec::new();
        for component in &installation.managed {
            for object in list(cluster, &installation.owner(*component).selector()).await? {
                if !rendered.iter().any(|key| key.is_same_object(object.key())) {
                    obsolete.push(object);
                }
            }
        }
        plan.delete(obsolete);
        Ok(plan)
    }

    /// The removal of all objects of a revision, or, without one, of all installations.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn of_removal(revision: Option<&str>, cluster: &TargetCluster) -> Result<Self, InstallError> {
        let selector = revision.map_or_else(ownership::purge_selector, ownership::revision_selector);
        let mut plan = Self::default();
        plan.delete(list(cluster, &selector).await?);
        Ok(plan)
    }

    /// Adds namespaces that do not exist. Returns their names.
    async fn add_namespaces(
        &mut self,
        installation: &Installation,
        manifests: &[Manifest],
        cluster: &TargetCluster,
    ) -> Result<BTreeSet<String>, InstallError> {
        let mut namespaces: BTreeMap<&str, Component> = BTreeMap::new();
        for spec in &installation.components {
            namespaces.entry(&spec.namespace).or_insert(spec.component);
        }
        let mut missing = BTreeSet::new();
        for (name, component) in namespaces {
            if manifests.iter().all(|manifest| manifest.component != component) {
                continue;
            }
            let mut metadata = json!({"name": name});
            if name == installation.namespace && !installation.network.is_empty() {
                metadata["labels"] = json!({"topology.istio.io/network": installation.network});
            }
            let json = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
            let Some(object) = KubeObject::new(json) else { continue };
            if cluster.get(object.key()).await?.is_none() {
                missing.insert(name.to_owned());
                self.changes.push(ObjectChange { component, object, action: Action::Create });
            }
        }
        Ok(missing)
    }

    /// Adds deletions, in the reverse order of an installation.
    fn delete(&mut self, mut objects: Vec<KubeObject>) {
        objects.sort_by_key(|object| std::cmp::Reverse((component_of(object), step(&object.key().kind))));
        self.changes.extend(objects.into_iter().map(|object| ObjectChange {
            component: component_of(&object).unwrap_or(Component::Pilot),
            action: Action::Delete(Box::new(object.clone())),
            object,
        }));
    }

    /// The number of objects by what happens to them.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for change in &self.changes {
            match change.action {
                Action::Create => counts.created += 1,
                Action::Change { .. } => counts.changed += 1,
                Action::Keep => counts.kept += 1,
                Action::Delete(_) => counts.deleted += 1,
            }
        }
        counts
    }

    /// Whether nothing would change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Counts { created, changed, deleted, .. } = self.counts();
        created + changed + deleted == 0
    }
}

impl ObjectChange {
    /// `+`, `~`, `-` or a space, and the object.
    #[must_use]
    pub fn summary(&self) -> String {
        let mark = match self.action {
            Action::Create => '+',
            Action::Change { .. } => '~',
            Action::Keep => ' ',
            Action::Delete(_) => '-',
        };
        format!("{mark} {}", self.object.key())
    }

    /// A unified diff of the YAML texts before and afterwards. Empty if nothing changes.
    ///
    /// # Errors
    /// An object has too many levels.
    pub fn diff(&self) -> Result<String, String> {
        let (before, after) = match &self.action {
            Action::Create => (String::new(), self.object.to_yaml()?),
            Action::Change { before, after } => (before.to_yaml()?, after.to_yaml()?),
            Action::Keep => return Ok(String::new()),
            Action::Delete(before) => (before.to_yaml()?, String::new()),
        };
        Ok(unified(&self.object.key().to_string(), &before, &after))
    }
}

fn unified(name: &str, before: &str, after: &str) -> String {
    let (old, new) = (format!("{name} (cluster)"), format!("{name} (new)"));
    let none = "/dev/null".to_owned();
    let (old, new) = (if before.is_empty() { &none } else { &old }, if after.is_empty() { &none } else { &new });
    TextDiff::from_lines(before, after).unified_diff().context_radius(CONTEXT_LINES).header(old, new).to_string()
}

/// A namespaced object without a namespace is in that of its component.
async fn placed(
    object: &KubeObject,
    siblings: &[KubeObject],
    installation: &Installation,
    cluster: &TargetCluster,
) -> Result<KubeObject, InstallError> {
    let mut object = object.clone();
    if object.key().namespace.is_empty() && cluster.is_namespaced(object.key()).await? == Some(true) {
        let namespace = siblings.iter().map(|sibling| sibling.key().namespace.as_str()).find(|it| !it.is_empty());
        object.set_namespace(namespace.unwrap_or(&installation.namespace));
    }
    Ok(object)
}

/// What applying an object would do.
async fn compare(
    object: &KubeObject,
    cluster: &TargetCluster,
    namespace_is_missing: bool,
) -> Result<Action, InstallError> {
    if namespace_is_missing {
        return Ok(Action::Create);
    }
    let before = cluster.get(object.key()).await?;
    if let Some(release) = before.as_ref().and_then(helm_release) {
        let reason = format!(
            "it belongs to the release {release} of helm: upgrade that release, or run `helm uninstall {release}` first; \
             components.NAME.enabled: false leaves a component to helm"
        );
        return Err(InstallError::refused(object.key(), reason));
    }
    let after = cluster.apply(object, Write::DryRun).await?;
    Ok(match before {
        None => Action::Create,
        Some(before) if before.desired() == after.desired() => Action::Keep,
        Some(before) => Action::Change { before: Box::new(before), after: Box::new(after) },
    })
}

/// The objects of all kinds that a selector selects.
async fn list(cluster: &TargetCluster, selector: &str) -> Result<Vec<KubeObject>, InstallError> {
    let mut objects = Vec::new();
    for kind in KINDS.iter().chain([&SERVICE_MONITOR]) {
        objects.extend(cluster.list(*kind, selector).await?);
    }
    Ok(objects)
}

/// The keys of all objects of a plan that are applied.
pub(crate) fn applied_keys(plan: &ChangePlan) -> Vec<ObjectKey> {
    let applied = plan.changes.iter().filter(|change| !matches!(change.action, Action::Delete(_)));
    applied.map(|change| change.object.key().clone()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;

    fn object(kind: &str, data: Json) -> KubeObject {
        let json = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "a", "namespace": "x"}, "data": data});
        KubeObject::new(json).expect("an object")
    }

    fn change(action: Action) -> ObjectChange {
        ObjectChange { component: Component::Pilot, object: object("ConfigMap", json!({"k": "1"})), action }
    }

    #[test]
    fn diff_shows_the_changed_lines() {
        let before = Box::new(object("ConfigMap", json!({"k": "a\nb\n", "l": "1"})));
        let after = Box::new(object("ConfigMap", json!({"k": "a\nc\n", "l": "1"})));
        let changed = change(Action::Change { before, after });
        let expected = "\
--- ConfigMap x/a (cluster)
+++ ConfigMap x/a (new)
@@ -2,7 +2,7 @@
 data:
   k: |
     a
-    b
+    c
   l: \"1\"
 kind: ConfigMap
 metadata:
";
        assert_eq!(changed.diff().expect("a diff"), expected);
        assert_eq!(changed.summary(), "~ ConfigMap x/a");
        let created = change(Action::Create).diff().expect("a diff");
        assert!(created.starts_with("--- /dev/null\n+++ ConfigMap x/a (new)\n@@ -0,0 +1,"), "{created}");
        assert_eq!(change(Action::Keep).diff().expect("a diff"), "");
    }

    #[test]
    fn content_of_secrets_is_not_shown() {
        let secret = |value: &str| Box::new(object("Secret", json!({"k": value})));
        let changed = change(Action::Change { before: secret("aaaa"), after: secret("bbbbbb") });
        let diff = changed.diff().expect("a diff");
        assert!(diff.contains("(hidden, 6 characters)") && !diff.contains("aaaa") && !diff.contains("bbbb"), "{diff}");
    }

    #[test]
    fn objects_are_deleted_in_the_reverse_order_of_their_installation() {
        let kinds = ["ServiceAccount", "Deployment", "MutatingWebhookConfiguration", "ConfigMap"];
        let mut plan = ChangePlan::default();
        plan.delete(kinds.map(|kind| object(kind, json!({}))).to_vec());
        let order: Vec<&str> = plan.changes.iter().map(|change| change.object.key().kind.as_str()).collect();
        assert_eq!(order, ["MutatingWebhookConfiguration", "Deployment", "ConfigMap", "ServiceAccount"]);
        assert_eq!(plan.counts(), Counts { deleted: 4, ..Counts::default() });
    }
}
