//! Which control plane writes the status of an object and deploys a Gateway: that of the object's revision (C20).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sluice_engine::{Collection, Context, DataflowBuilder, Dep, Deps};
use sluice_model::{
    DEFAULT_REVISION_WEBHOOK, DEFAULT_TAG_WEBHOOK, KubernetesService, Labels, Namespace, ObjectKey, Text, label,
};

use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;

/// What objects select this control plane by.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub(crate) struct OwnRevision {
    /// The revision and its tags.
    names: BTreeSet<Text>,
    /// It is the default revision: that of objects without a label.
    is_default: bool,
}

impl OwnRevision {
    /// Whether an object that selects a revision or tag, or nothing, is of this control plane. The default revision has two
    /// names.
    fn includes(&self, selected: &str) -> bool {
        self.names.contains(selected) || (matches!(selected, "" | "default") && self.is_default)
    }
}

/// The collections by which the revision of objects is looked up.
pub(crate) struct Revisions<'s> {
    own: Collection<'s, (), OwnRevision>,
    namespaces: Collection<'s, ObjectKey, Namespace>,
    /// The cluster whose statuses are written.
    cluster: Text,
}

impl<'s> Revisions<'s> {
    /// Derives the revision and the tags of this control plane. Tags are MutatingWebhookConfigurations, and Services of its
    /// namespace.
    ///
    /// Key: `()`. From: `mutating_webhook_configurations`, `validating_webhook_configurations`, `raw_kubernetes_services` (those
    /// with a tag). Changes when: a tag is added, removed or moves to another revision, or another revision becomes the default
    /// one. Size: 1. Rejects: none.
    pub(crate) fn derive(
        graph: &DataflowBuilder<'s>,
        objects: &ObjectCollections<'s>,
        services: &Collection<'s, ObjectKey, KubernetesService>,
        options: &GraphOptions,
    ) -> Self {
        let cluster = options.cluster.clone();
        let (own, namespace) = (options.revision.clone(), options.system_namespace.clone());
        let services = services.filter("revision_tag_services", move |key, service| {
            key.cluster == cluster && key.namespace == namespace && service.meta.labels.contains_key(label::TAG)
        });
        let cluster = options.cluster.clone();
        let own = graph.singleton("own_revision", |deps| {
            let services = deps.on(&services);
            let (mutating, validating) = (deps.on(&objects.mutating_webhooks), deps.on(&objects.validating_webhooks));
            move |cx| {
                let webhooks = cx.all(&mutating);
                let of_webhooks = webhooks.iter().map(|(_, webhook)| (webhook.tag.clone(), webhook.revision.clone()));
                let of_services = cx.all(&services).into_iter().map(|(_, service)| {
                    let of = |name: &str| service.meta.labels.get(name).cloned().unwrap_or_default();
                    (of(label::TAG), of(label::REVISION))
                });
                let tags = of_webhooks.chain(of_services).filter(|(tag, revision)| !tag.is_empty() && *revision == own);
                let names: BTreeSet<Text> = tags.map(|(tag, _)| tag).chain([own.clone()]).collect();
                let key = |name: &str| ObjectKey::new(cluster.clone(), "", name);
                // A tag `default` precedes the webhook of the default revision.
                let has_default_tag = webhooks.iter().any(|(key, _)| key.name == DEFAULT_TAG_WEBHOOK);
                let validated = || cx.get(&validating, &key(DEFAULT_REVISION_WEBHOOK));
                let is_default = matches!(own.as_str(), "" | "default")
                    || names.contains("default")
                    || (!has_default_tag && validated().is_some_and(|webhook| webhook.revision == own));
                Some(OwnRevision { names, is_default })
            }
        });
        Self { own, namespaces: objects.namespaces.clone(), cluster: options.cluster.clone() }
    }

    /// Declares the look-up.
    pub(crate) fn on(&self, deps: &mut Deps<'s>) -> RevisionLookup {
        RevisionLookup { own: deps.on(&self.own), namespaces: deps.on(&self.namespaces), cluster: self.cluster.clone() }
    }
}

/// Looks up the revision of objects: that of their label, else that of their namespace, else the default one.
pub(crate) struct RevisionLookup {
    own: Dep<(), OwnRevision>,
    namespaces: Dep<ObjectKey, Namespace>,
    cluster: Text,
}

impl RevisionLookup {
    /// Whether an object is of the local cluster and of the revision of this control plane.
    pub(crate) fn owns(&self, cx: &Context, key: &ObjectKey, labels: &Labels) -> bool {
        if key.cluster != self.cluster {
            return false;
        }
        let selected = match labels.get(label::REVISION) {
            Some(label) => label.clone(),
            None => {
                let namespace = ObjectKey::new(key.cluster.clone(), "", key.namespace.clone());
                // Until its namespace is known, an object is of every revision. Those without a namespace always are.
                let Some(namespace) = cx.get(&self.namespaces, &namespace) else { return true };
                namespace.labels.get(label::REVISION).cloned().unwrap_or_default()
            }
        };
        cx.get(&self.own, &()).is_some_and(|own| own.includes(&selected))
    }
}
