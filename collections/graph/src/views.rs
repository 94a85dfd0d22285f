//! For whose eyes something is written, and what of it differs from what everyone sees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_model::{Resource, SidecarScope, Text, View};

/// What is written for the views in which something about a host may differ.
///
/// Everything about a host is a function of the view. It is evaluated for [`View::Base`] and for the special views that
/// rules name; what comes out equal to what the layers below already give is left out, and a name that they have but the
/// view must not see becomes [`Resource::Hidden`]. So the cost is that of the special views, never namespaces × hosts.
pub(crate) struct Overlay;

impl Overlay {
    /// Evaluates `f` for the base and for each of `special`, and gives the rows to write: (view, name, resource).
    ///
    /// `special` needs no order; `Base` in it is superfluous. A `Selected` view lies on its namespace's view, which is
    /// evaluated too; a `Sidecar` view for selected labels on that for none, and that one on nothing.
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
        // Namespace views sort before Selected ones, and no labels before some.
        for view in views {
            let own = f(&view);
            let under = match &view {
                View::Selected { namespace, .. } => namespaces.get(namespace).unwrap_or(&base),
                View::Sidecar { scope, .. } => scopes.get(scope).unwrap_or(&nothing),
                _ => &base,
            };
            for (name, resource) in difference(under, &own) {
                rows.push((view.clone(), name, resource));
            }
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

/// What has to lie over `under` so that one sees `own`.
fn difference<N: Ord + Clone>(under: &BTreeMap<N, Resource>, own: &BTreeMap<N, Resource>) -> Vec<(N, Resource)> {
    let changed = own.iter().filter(|(name, resource)| under.get(*name) != Some(*resource));
    let hidden = under.keys().filter(|name| !own.contains_key(*name));
    changed
        .map(|(name, resource)| (name.clone(), resource.clone()))
        .chain(hidden.map(|name| (name.clone(), Resource::Hidden)))
        .collect()
}

/// The view of the proxies of a scope, whatever their labels.
pub(crate) fn sidecar_view(scope: &SidecarScope) -> View {
    View::Sidecar { scope: Arc::new(scope.clone()), labels: sluice_model::Labels::new() }
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
    fn a_selection_lies_on_its_namespace() {
        let labels: Labels = [("app".into(), "x".into())].into();
        let selected = View::Selected { namespace: "ns".into(), labels };
        let rows = Overlay::rows([selected.clone()], |view| match view {
            View::Base => see(&[("a", "base")]),
            View::Namespace(_) => see(&[("a", "namespace")]),
            _ => see(&[("a", "base")]),
        });
        // The namespace differs from the base, and the selection, though equal to the base, from its namespace.
        assert_eq!(rows.len(), 3);
        assert!(rows.contains(&(selected, "a", see(&[("a", "base")])["a"].clone())));
    }
}
