//! What Telemetries and extensions attach to proxies (T01, T05). It is derived once for all proxies of a namespace that
//! no selector distinguishes, and it is named by content, so that proxies with equal attachments share listeners.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_envoy::listener_settings::{
    ListenerAttachments, ListenerExtension, ListenerProfile, Observation, config_of_listeners,
};
use sluice_model::{
    Attachment, DefaultProviders, Labels, MeshConfig, ObjectKey, Proxy, ProxyConfig, ProxyKey, ProxyType, Telemetry,
    Text, TrafficExtension, WaypointTarget, label,
};

use crate::content_names::content_hash;
use crate::inputs::ObjectCollections;

/// The fields of the mesh config that decide what is attached.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct AttachDefaults {
    providers: DefaultProviders,
    root: Text,
}

/// Proxies that no selector distinguishes.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct Subject {
    namespace: Text,
    /// Its labels that a Telemetry or an extension of its namespace or the root namespace selects.
    labels: Labels,
    /// It is a waypoint: with the label of its Gateway, only objects with target references apply, or Telemetries of a whole
    /// namespace.
    waypoint: bool,
}

impl Subject {
    /// Whether an object at `key` is attached to it.
    fn has(&self, attachment: &Attachment, key: &ObjectKey, root: &Text) -> bool {
        attachment.is_for_proxy(key, self.waypoint, &self.namespace, &self.labels, root)
    }
}

/// Telemetry and extensions of proxies.
#[derive(Clone)]
pub(crate) struct Attachments<'s> {
    /// The attachments of proxies without a Telemetry or extension of their own: one record.
    pub(crate) default: Collection<'s, (), Arc<ListenerAttachments>>,
    /// The attachments of other proxies, by [`ListenerProfile::attached`].
    pub(crate) by_name: Collection<'s, Text, Arc<ListenerAttachments>>,
    /// The facts of each proxy that its listeners are built from.
    pub(crate) facts: Collection<'s, ProxyKey, ListenerProfile>,
    /// TrafficExtensions, and WasmPlugins converted to extensions.
    pub(crate) extensions: Collection<'s, ObjectKey, TrafficExtension>,
    /// Namespace whose Telemetries and extensions are for the whole mesh: one record.
    pub(crate) root: Collection<'s, (), Text>,
    /// Labels that Telemetries and extensions select, with the namespace of the object.
    pub(crate) labels: Collection<'s, (Text, Label), ()>,
    defaults: Collection<'s, (), AttachDefaults>,
    index: AttachmentIndex<'s>,
}

/// Telemetries and extensions by namespace.
#[derive(Clone)]
struct AttachmentIndex<'s> {
    telemetries: Index<'s, Text, ObjectKey, Telemetry>,
    extensions: Index<'s, Text, ObjectKey, TrafficExtension>,
    labels: Index<'s, Text, (Text, Label), ()>,
}

/// A label: key and value.
pub(crate) type Label = (Text, Text);

/// Derives what is attached to each proxy.
pub(crate) fn derive_attached<'s>(
    objects: &ObjectCollections<'s>,
    mesh: &Collection<'s, (), MeshConfig>,
    proxies: &Collection<'s, ProxyKey, Proxy>,
) -> Attachments<'s> {
    let defaults = mesh.map("attached/defaults", |(), mesh| AttachDefaults {
        providers: mesh.default_providers.clone(),
        root: mesh.root_namespace.clone(),
    });
    let extensions = derive_extensions(objects);
    let labels = derive_selected_labels(objects, &extensions);
    let attachments = AttachmentIndex {
        telemetries: objects
            .telemetries
            .index("attached/telemetries", |_, telemetry| [(telemetry.namespace.clone(), telemetry.clone())]),
        extensions: extensions
            .index("attached/extensions", |_, extension| [(extension.namespace.clone(), extension.clone())]),
        labels: labels.index("attached/labels-by-namespace", |(namespace, _), ()| [(namespace.clone(), ())]),
    };
    let subjects = derive_subjects(proxies, &defaults, &attachments);
    let distinct = subjects.index("attached/by-subject", |_, subject| [(subject.clone(), ())]).distinct("subjects");
    let contents = derive_contents(&distinct, &defaults, &attachments);
    let by_name: Index<'s, Text, Subject, Arc<ListenerAttachments>> =
        contents.index("attached/by-content", |_, attached| [(attached_name(attached), attached.clone())]);
    let by_name = by_name.group("attached", |_, same| same.first().map(|(_, attached)| (*attached).clone()));
    let default = defaults.map("attached/default", |(), defaults| {
        let observation = Observation::merge(&defaults.providers, &[]);
        Arc::new(ListenerAttachments { observation, extensions: Vec::new() })
    });
    let root = defaults.map("attached/root-namespace", |(), defaults| defaults.root.clone());
    // Gateways read the most fields.
    let config = mesh
        .map("listener_facts/default-config", |(), mesh| config_of_listeners(&mesh.default_config, ProxyType::Router));
    let facts = derive_facts(proxies, &subjects, &contents, &config);
    Attachments { default, by_name, facts, extensions, root, labels, defaults, index: attachments }
}

/// TrafficExtensions, and WasmPlugins converted to extensions.
/// Key: `ObjectKey`, of a WasmPlugin with the name of its extension. From: `traffic_extensions`, `wasm_plugins`.
/// Changes when: they do. Size: both kinds. Rejects: none; parsing rejects invalid objects.
fn derive_extensions<'s>(objects: &ObjectCollections<'s>) -> Collection<'s, ObjectKey, TrafficExtension> {
    let plugins = objects.wasm_plugins.flat_map("extensions/wasm_plugins", |key, plugin| {
        [(ObjectKey { name: plugin.name.clone(), ..key.clone() }, plugin.clone())]
    });
    objects.traffic_extensions.union("extensions", &[plugins])
}

/// Labels that Telemetries and extensions select.
/// Key: namespace of the object, and label. From: `telemetries`, `extensions`.
/// Changes when: a selector mentions a label for the first time, or no longer. Size: such labels. Rejects: none.
fn derive_selected_labels<'s>(
    objects: &ObjectCollections<'s>,
    extensions: &Collection<'s, ObjectKey, TrafficExtension>,
) -> Collection<'s, (Text, Label), ()> {
    let rows = |namespace: &Text, attachment: &Attachment| -> Vec<((Text, Label), ())> {
        let labels = attachment.labels().map(|(key, value)| (key.clone(), value.clone()));
        labels.collect::<BTreeSet<Label>>().into_iter().map(|label| ((namespace.clone(), label), ())).collect()
    };
    let of_telemetries = objects
        .telemetries
        .index("attached/telemetry-labels", move |_, telemetry| rows(&telemetry.namespace, &telemetry.attachment));
    let of_extensions = extensions
        .index("attached/extension-labels", move |_, extension| rows(&extension.namespace, &extension.attachment));
    let of_extensions = of_extensions.distinct("attached/labels-of-extensions");
    of_telemetries.distinct("attached/labels-of-telemetries").union("attached/labels", &[of_extensions])
}

/// The subject of each proxy.
/// Key: `ProxyKey`. From: `proxies`, the labels that Telemetries and extensions of its namespace and of the root
/// namespace select. Changes when: such a label of the proxy does. Size: connected proxies. Rejects: none.
fn derive_subjects<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    defaults: &Collection<'s, (), AttachDefaults>,
    attachments: &AttachmentIndex<'s>,
) -> Collection<'s, ProxyKey, Subject> {
    proxies.derive("proxy_subjects", |deps| {
        let (defaults, labels) = (deps.on(defaults), deps.by(&attachments.labels));
        move |cx, _, proxy| {
            let defaults = cx.get(&defaults, &())?;
            let namespaces = BTreeSet::from([&proxy.namespace, &defaults.root]);
            let selected = namespaces.iter().flat_map(|namespace| cx.by(&labels, namespace));
            let selected: BTreeSet<Label> = selected.map(|((_, label), _)| label).collect();
            let waypoint = proxy.proxy_type == ProxyType::Waypoint;
            let mut labels: Labels = proxy.labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            labels.retain(|key, value| {
                (waypoint && *key == label::GATEWAY_NAME) || selected.contains(&(key.clone(), value.clone()))
            });
            Some(Subject { namespace: proxy.namespace.clone(), labels, waypoint })
        }
    })
}

/// The attachments of each subject; a subject with the default attachments is absent.
/// Key: `Subject`. From: `subjects`, `telemetries` and `extensions` of its namespace and of the root namespace.
/// Changes when: one of those does. Size: subjects with attachments of their own. Rejects: none.
fn derive_contents<'s>(
    subjects: &Collection<'s, Subject, ()>,
    defaults: &Collection<'s, (), AttachDefaults>,
    attachments: &AttachmentIndex<'s>,
) -> Collection<'s, Subject, Arc<ListenerAttachments>> {
    subjects.derive("attached/contents", |deps| {
        let (lookup, defaults) = (SubjectLookup::on(deps, attachments), deps.on(defaults));
        move |cx, subject: &Subject, ()| {
            let defaults = cx.get(&defaults, &())?;
            let (own, root) = (subject.namespace.as_str(), defaults.root.as_str());
            let (root_first, own_first): (&[_], &[_]) =
                if own == root { (&[own], &[own]) } else { (&[root, own], &[own, root]) };
            let applies = |attachment: &Attachment, key: &ObjectKey| subject.has(attachment, key, &defaults.root);
            let telemetries = lookup.telemetries(cx, root_first, own, applies);
            let extensions = lookup.extensions(cx, own_first, applies);
            if telemetries.is_empty() && extensions.is_empty() {
                return None;
            }
            let telemetries: Vec<&Telemetry> = telemetries.iter().map(AsRef::as_ref).collect();
            let observation = Observation::merge(&defaults.providers, &telemetries);
            let usual = extensions.is_empty() && observation == Observation::merge(&defaults.providers, &[]);
            (!usual).then(|| Arc::new(ListenerAttachments { observation, extensions }))
        }
    })
}

fn attached_name(attached: &ListenerAttachments) -> Text {
    content_hash(attached).into()
}

/// The facts that listeners of each proxy are built from: its own facts, and the name of its attachments.
/// Key: `ProxyKey`. From: `proxies`, `proxy_subjects`, `attached/contents`, `mesh_config` (the default ProxyConfig).
/// Changes when: any of these does. Size: connected proxies. Rejects: none.
fn derive_facts<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    subjects: &Collection<'s, ProxyKey, Subject>,
    contents: &Collection<'s, Subject, Arc<ListenerAttachments>>,
    config: &Collection<'s, (), ProxyConfig>,
) -> Collection<'s, ProxyKey, ListenerProfile> {
    let names = contents.map("attached/names", |_, attached| attached_name(attached));
    proxies.derive("listener_facts", |deps| {
        let (subjects, names, config) = (deps.on(subjects), deps.on(&names), deps.on(config));
        move |cx, key, proxy| {
            let subject = cx.get(&subjects, key)?;
            let attached = cx.get(&names, &subject).map(|name| (*name).clone()).unwrap_or_default();
            let config = cx.get(&config, &())?;
            Some(ListenerProfile { attached, ..ListenerProfile::of(proxy, &config) })
        }
    })
}

/// Looks up the Telemetries and extensions that may select a subject.
#[derive(Clone, Copy)]
struct SubjectLookup {
    telemetries: IndexDep<Text, ObjectKey, Telemetry>,
    extensions: IndexDep<Text, ObjectKey, TrafficExtension>,
}

impl SubjectLookup {
    fn on<'s>(deps: &mut Deps<'s>, attachments: &AttachmentIndex<'s>) -> Self {
        Self { telemetries: deps.by(&attachments.telemetries), extensions: deps.by(&attachments.extensions) }
    }

    /// Those of a namespace, older ones first.
    fn telemetries_of(self, cx: &Context, namespace: &str) -> Vec<(ObjectKey, Arc<Telemetry>)> {
        let mut rows = cx.by(&self.telemetries, &Text::from(namespace));
        rows.sort_by(|(_, a), (_, b)| (a.created, &a.name).cmp(&(b.created, &b.name)));
        rows
    }

    /// The oldest for each whole namespace, then those in the namespace `own`, one of them, that apply by themselves,
    /// older ones first.
    fn telemetries(
        self,
        cx: &Context,
        namespaces: &[&str],
        own: &str,
        applies: impl Fn(&Attachment, &ObjectKey) -> bool,
    ) -> Vec<Arc<Telemetry>> {
        let (mut found, mut selected) = (Vec::new(), Vec::new());
        for namespace in namespaces {
            let rows = self.telemetries_of(cx, namespace);
            found.extend(rows.iter().map(|(_, telemetry)| telemetry).find(|telemetry| is_wide(telemetry)).cloned());
            if *namespace == own {
                selected = rows;
            }
        }
        selected.retain(|(key, telemetry)| !is_wide(telemetry) && applies(&telemetry.attachment, key));
        found.extend(selected.into_iter().map(|(_, telemetry)| telemetry));
        found
    }

    /// Those of each namespace that apply, older ones first; higher priorities come before lower ones.
    fn extensions(
        self,
        cx: &Context,
        namespaces: &[&str],
        applies: impl Fn(&Attachment, &ObjectKey) -> bool,
    ) -> Vec<ListenerExtension> {
        let mut found: Vec<Arc<TrafficExtension>> = Vec::new();
        for namespace in namespaces {
            let mut rows = cx.by(&self.extensions, &Text::from(*namespace));
            rows.retain(|(key, extension)| applies(&extension.attachment, key));
            rows.sort_by(|(_, a), (_, b)| (a.created, &a.name).cmp(&(b.created, &b.name)));
            found.extend(rows.into_iter().map(|(_, extension)| extension));
        }
        found.sort_by_key(|extension| std::cmp::Reverse(extension.priority.unwrap_or(i32::MIN)));
        found.iter().map(|extension| ListenerExtension::of(extension)).collect()
    }
}

/// Looks up what is attached to the traffic of a service at its waypoint, inside a `derive`.
#[derive(Clone, Copy)]
pub(crate) struct WaypointAttachments {
    lookup: SubjectLookup,
    defaults: Dep<(), AttachDefaults>,
}

impl WaypointAttachments {
    /// Declares the look-ups.
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, attachments: &Attachments<'s>) -> Self {
        Self { lookup: SubjectLookup::on(deps, &attachments.index), defaults: deps.on(&attachments.defaults) }
    }

    /// The attachments of a service of a waypoint. Telemetries of the service's namespace follow those of the
    /// waypoint's.
    pub(crate) fn get(&self, cx: &Context, waypoint: &WaypointTarget<'_>) -> Option<Arc<ListenerAttachments>> {
        let defaults = cx.get(&self.defaults, &())?;
        let applies = |attachment: &Attachment, key: &ObjectKey| attachment.is_for_waypoint(key, waypoint);
        let of_service = waypoint.service.map_or(waypoint.namespace, |(_, object)| &*object.namespace);
        let telemetries = self.lookup.telemetries(cx, &waypoint.namespaces_root_first(), of_service, applies);
        let telemetries: Vec<&Telemetry> = telemetries.iter().map(AsRef::as_ref).collect();
        Some(Arc::new(ListenerAttachments {
            observation: Observation::merge(&defaults.providers, &telemetries),
            extensions: self.lookup.extensions(cx, &waypoint.namespaces_own_first(), applies),
        }))
    }
}

/// Whether a Telemetry is for its whole namespace.
fn is_wide(telemetry: &Telemetry) -> bool {
    telemetry.attachment.selector.is_empty() && !telemetry.attachment.has_targets()
}
