//! What a proxy holds: the names it was told of and their versions, each text once for all proxies.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dashmap::DashSet;
use rapidhash::fast::RandomState;

/// Texts that many proxies have in common.
#[derive(Debug, Default)]
pub(crate) struct Texts(DashSet<Arc<str>, RandomState>);

impl Texts {
    pub(crate) fn get(&self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let new: Arc<str> = text.into();
        self.0.insert(new.clone());
        new
    }
}

/// What was told of a name.
#[derive(Clone, Debug)]
struct Told {
    version: Arc<str>,
    digest: u64,
}

/// One type at one proxy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// Names asked for, and the version each was told in, if it was. A name the server says is gone has an empty one.
    names: HashMap<Arc<str>, Option<Told>, RandomState>,
    /// Names of which nothing is known.
    unknown: usize,
}

impl Held {
    /// Asks for a name; whether that is new.
    pub(crate) fn ask(&mut self, name: &str, texts: &Texts) -> bool {
        let new = !self.has(name);
        if new {
            self.names.insert(texts.get(name), None);
            self.unknown += 1;
        }
        new
    }

    /// Takes what the server says of a name: a version, and the digest of the content, of proxies that are to know it.
    pub(crate) fn tell(&mut self, name: Arc<str>, version: Arc<str>, digest: u64) {
        if let Some(None) = self.names.insert(name, Some(Told { version, digest })) {
            self.unknown -= 1;
        }
    }

    /// Whether it asks for a name, or was told of it.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// No longer asks for a name; whether it did.
    pub(crate) fn forget(&mut self, name: &str) -> bool {
        match self.names.remove(name) {
            Some(None) => {
                self.unknown -= 1;
                true
            }
            Some(Some(_)) => true,
            None => false,
        }
    }

    /// Something is known of every name.
    pub(crate) fn is_complete(&self) -> bool {
        self.unknown == 0
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(|name| &**name)
    }

    /// Names with the version that is held.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (&str, &str)> {
        self.there().map(|(name, told)| (name, &*told.version))
    }

    /// Names of what there is, with the digest of its content.
    pub(crate) fn contents(&self) -> BTreeMap<&str, u64> {
        self.there().map(|(name, told)| (name, told.digest)).collect()
    }

    fn there(&self) -> impl Iterator<Item = (&str, &Told)> {
        let told = self.names.iter().filter_map(|(name, told)| Some((&**name, told.as_ref()?)));
        told.filter(|(_, told)| !told.version.is_empty())
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_is_when_every_name_was_answered() {
        let texts = Texts::default();
        let mut held = Held::default();
        assert!(held.is_complete());
        assert!(held.ask("a", &texts) && held.ask("b", &texts) && !held.ask("a", &texts));
        held.tell(texts.get("a"), texts.get("1"), 7);
        held.tell(texts.get("a"), texts.get("2"), 7);
        assert!(!held.is_complete());
        held.tell(texts.get("b"), texts.get(""), 7);
        assert!(held.is_complete());
        assert_eq!(held.versions().collect::<Vec<_>>(), [("a", "2")]);
        assert_eq!(held.contents(), [("a", 7)].into());
        assert!(held.forget("b") && !held.forget("b"));
    }

    #[test]
    fn a_text_is_kept_once() {
        let texts = Texts::default();
        assert!(Arc::ptr_eq(&texts.get("x"), &texts.get("x")));
    }
}
