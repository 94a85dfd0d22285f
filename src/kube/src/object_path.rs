//! Paths of objects in the Kubernetes API.

use std::borrow::Cow;

/// A collection of objects: the path of its API, and the plural name of the objects.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ObjectPath {
    api: Cow<'static, str>,
    plural: &'static str,
}

impl ObjectPath {
    /// The objects `plural` of an API, such as `/apis/networking.istio.io/v1`.
    #[must_use]
    pub const fn new(api: &'static str, plural: &'static str) -> Self {
        Self { api: Cow::Borrowed(api), plural }
    }

    /// The objects `plural` of an `apiVersion`, such as `v1` or `networking.istio.io/v1`.
    #[must_use]
    pub fn of_version(api_version: &str, plural: &'static str) -> Self {
        let root = if api_version.contains('/') { "apis" } else { "api" };
        Self { api: format!("/{root}/{api_version}").into(), plural }
    }

    /// The plural name of the objects.
    #[must_use]
    pub const fn plural(&self) -> &'static str {
        self.plural
    }

    /// The path of the collection in a namespace; an empty namespace is that of objects without one.
    #[must_use]
    pub fn all(&self, namespace: &str) -> String {
        let Self { api, plural } = self;
        if namespace.is_empty() { format!("{api}/{plural}") } else { format!("{api}/namespaces/{namespace}/{plural}") }
    }

    /// The path of an object, or of a subresource of it.
    #[must_use]
    pub fn of(&self, namespace: &str, name: &str, subresource: &str) -> String {
        let object = format!("{}/{name}", self.all(namespace));
        if subresource.is_empty() { object } else { format!("{object}/{subresource}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_has_namespace_and_subresource_if_there_are_any() {
        let nodes = ObjectPath::new("/api/v1", "nodes");
        assert_eq!(nodes.of("", "one", ""), "/api/v1/nodes/one");
        let entries = ObjectPath::new("/apis/networking.istio.io/v1", "serviceentries");
        assert_eq!(entries.all("shop"), "/apis/networking.istio.io/v1/namespaces/shop/serviceentries");
        let status = "/apis/networking.istio.io/v1/namespaces/shop/serviceentries/web/status";
        assert_eq!(entries.of("shop", "web", "status"), status);
        assert_eq!(ObjectPath::of_version("networking.istio.io/v1", "serviceentries"), entries);
    }
}
