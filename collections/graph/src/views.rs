//! Views: for which clients a resource is written, and what differs from the view below.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_model::{Labels, Proxy, Resource, SidecarScope, Text, View};

/// The rows of a host that differ between views.
///
/// All resources of a host are a function of the view. They are evaluated for [`View::Base`] and for the special views
/// that rules name. A resource that equals the one of the layers below is omitted. A name that the layers below have
/// and the view must not have becomes [`Resource::Hidden`]. Thus the cost is that of the special views, never
/// namespaces × hosts.
pub(crate) struct Overlay;

impl Overlay {
    /// Evaluates `f` for the base and for each view of `special`, and returns the rows to write: (view, name,
    /// resource).
    ///
    /// `special` may be in any order and may contain `Base`. A `Selected` view overlays the view of its namespace,
    /// which is evaluated too. A `Sidecar` view with selected labels overlays the same view without labels, which
    /// overlays nothing.
    pub(crate) fn rows<N: Ord + Clone>(
        special: impl IntoIterator<Item = View>,
        mut f: impl FnMut(&View) -> BTreeMap<N, Resource>,
    ) -> Vec<(View, N, Resource)> {
        let mut views: BTreeSet<View> = special.into_iter().collect();
        views.remove(&View::Base);
        let below: Vec<View> = views
            .iter()
            .filter_map(|view| match view {
                View::Selected { namespace, .. } => Some(View::Namespace(namespace.clone())),
                View::Sidecar { scope, .. } => Some(sidecar_view(scope)),
                _ => None,
            })
            .collect();
        views.extend(below);
        let base = f(&View::Base);
        let mut namespaces: BTreeMap<Text, BTreeMap<N, Resource>> = BTreeMap::new();
        let mut scopes: BTreeMap<Arc<SidecarScope>, BTreeMap<N, Resource>> = BTreeMap::new();
        let nothing = BTreeMap::new();
        let mut rows = Vec::new();
        // Namespace views sort before Selected views, and empty labels sort before other labels.
        for view in views {
            let own = f(&view);
            let under = match &view {
                View::Selected { namespace, .. } => namespaces.get(namespace).unwrap_or(&base),
                View::Sidecar { scope, .. } => scopes.get(scope).unwrap_or(&nothing),
                _ => &base,
            };
            rows.extend(
                difference(under, &own).map(|(name, resource)| {
                    (view.clone(), name.clone(), resource.cloned().unwrap_or(Resource::Hidden))
                }),
            );
            match view {
                View::Namespace(namespace) => drop(namespaces.insert(namespace, own)),
                View::Sidecar { scope, labels } if labels.is_empty() => drop(scopes.insert(scope, own)),
                _ => {}
            }
        }
        rows.extend(base.into_iter().map(|(name, resource)| (View::Base, name, resource)));
        rows
    }
}

/// The content of an overlay on `below` such that both together give `own`: each name that differs, with its value, and
/// `None` for each name to hide.
pub(crate) fn difference<'a, N: Ord, V: PartialEq>(
    below: &'a BTreeMap<N, V>,
    own: &'a BTreeMap<N, V>,
) -> impl Iterator<Item = (&'a N, Option<&'a V>)> {
    let changed = own.iter().filter(|(name, value)| below.get(*name) != Some(*value));
    let hidden = below.keys().filter(|name| !own.contains_key(*name));
    changed.map(|(name, value)| (name, Some(value))).chain(hidden.map(|name| (name, None)))
}

/// The views of a proxy's outbound resources, the most specific first: its selection if a rule selects its labels, its
/// namespace, the base. With a Sidecar that limits what it reaches, only the views of that Sidecar.
pub(crate) fn outbound_views(proxy: &Proxy, labels: &Labels) -> Vec<View> {
    if let Some(sidecar) = proxy.sidecar.as_ref().filter(|sidecar| sidecar.limits) {
        let selected = (!labels.is_empty())
            .then(|| View::Sidecar { scope: Arc::new(sidecar.scope.clone()), labels: labels.clone() });
        return selected.into_iter().chain([sidecar_view(&sidecar.scope)]).collect();
    }
    let namespace = &proxy.namespace;
    let selected =
        (!labels.is_empty()).then(|| View::Selected { namespace: namespace.clone(), labels: labels.clone() });
    selected.into_iter().chain([View::Namespace(namespace.clone()), View::Base]).collect()
}

/// The view of the proxies of a Sidecar scope, with any labels.
pub(crate) fn sidecar_view(scope: &SidecarScope) -> View {
    View::Sidecar { scope: Arc::new(scope.clone()), labels: Labels::new() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use sluice_model::{Labels, Resource, Text, View};

    use super::Overlay;

    fn see(pairs: &[(&'static str, &'static str)]) -> BTreeMap<&'static str, Resource> {
        pairs.iter().map(|(name, text)| (*name, Resource::Encoded(Bytes::from_static(text.as_bytes())))).collect()
    }

    #[test]
    fn only_what_differs_is_written() {
        let namespaces = ["same", "more", "less"].map(Text::from);
        let rows = Overlay::rows(namespaces.map(View::Namespace), |view| match view.namespace() {
            "more" => see(&[("a", "1"), ("b", "2")]),
            "less" => see(&[]),
            _ => see(&[("a", "1")]),
        });
        let shown: Vec<_> = rows.iter().map(|(view, name, resource)| (view.namespace(), *name, resource)).collect();
        assert_eq!(
            shown,
            [
                ("less", "a", &Resource::Hidden),
                ("more", "b", &see(&[("b", "2")])["b"]),
                ("", "a", &see(&[("a", "1")])["a"]),
            ]
        );
    }

    #[test]
    fn a_selection_overlays_its_namespace() {
        let labels: Labels = [("app".into(), "x".into())].into();
        let selected = View::Selected { namespace: "ns".into(), labels };
        let rows = Overlay::rows([selected.clone()], |view| match view {
            View::Base => see(&[("a", "base")]),
            View::Namespace(_) => see(&[("a", "namespace")]),
            _ => see(&[("a", "base")]),
        });
        // The namespace differs from the base. The selection differs from its namespace, although it equals the base.
        assert_eq!(rows.len(), 3);
        assert!(rows.contains(&(selected, "a", see(&[("a", "base")])["a"].clone())));
    }
}
