//! Keys of namespaced objects.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::collection::{Collection, Index};
use crate::value::{Key, Value};

/// A key with a namespace.
pub trait Namespaced {
    /// The namespace; empty for an object without one.
    fn namespace(&self) -> &str;
}

/// Namespace and name of an object. As text it is `NAMESPACE/NAME`, and `NAME` without a namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct NamespacedName {
    /// The namespace; empty for an object without one.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl NamespacedName {
    /// The name of an object in a namespace.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl Namespaced for NamespacedName {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name } = self;
        if namespace.is_empty() { f.write_str(name) } else { write!(f, "{namespace}/{name}") }
    }
}

impl FromStr for NamespacedName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (namespace, name),
            None => ("", text),
        };
        if name.is_empty() || name.contains('/') || text.starts_with('/') {
            return Err(InvalidName(text.to_owned()));
        }
        Ok(Self::new(namespace, name))
    }
}

impl Serialize for NamespacedName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A text that is not the name of an object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InvalidName(String);

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not the name of an object: expected NAMESPACE/NAME or NAME", self.0)
    }
}

impl std::error::Error for InvalidName {}

impl<'s, K: Key + Namespaced, V: Value> Collection<'s, K, V> {
    /// The records by namespace. The rows are copies of the values: index a part of them with [`Self::index`] where that
    /// is enough.
    pub fn by_namespace(&self, name: &str) -> Index<'s, String, K, V> {
        self.index(name, |key, value| [(key.namespace().to_owned(), value.clone())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_name_is_parsed_again() {
        for text in ["shop/web", "web"] {
            assert_eq!(text.parse::<NamespacedName>().map(|name| name.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "shop/", "/web", "a/b/c"] {
            let error = text.parse::<NamespacedName>().expect_err("not a name");
            assert!(error.to_string().starts_with(&format!("{text:?} is not the name")), "{error}");
        }
    }
}
