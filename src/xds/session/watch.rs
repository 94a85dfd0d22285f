//! What a client wants and holds of one type.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use sluice_model::{ResourceType, Text};

use crate::xds::names::{NameSet, Names};
use crate::xds::request::{Interest, MAX_NAME, MAX_NAMES, Refusal};
use crate::xds::store::{Found, View};
use crate::xds::version::Version;

/// What a client wants and holds of one type.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) kind: ResourceType,
    /// Everything in the scope is wanted.
    pub(super) wildcard: bool,
    /// These are wanted by name.
    pub(super) names: NameSet,
    /// Up to here the client was told of every change.
    pub(super) sent: Option<Arc<View>>,
    /// Up to here it has acknowledged.
    pub(super) acked: Option<Arc<View>>,
    /// Names to answer whether or not the client seems to hold them.
    pub(super) asked: BTreeSet<Text>,
    /// Everything is to be answered.
    pub(super) asked_all: bool,
    /// The client waits for a response, even one with nothing in it.
    pub(super) answer: bool,
    /// What the client says it holds from an earlier stream; `None` is a version we never gave.
    pub(super) holds: HashMap<Text, Option<Version>>,
    /// Resources that are gone but which the client is to keep until what replaces them is in use.
    pub(super) leaving: BTreeMap<Text, Found>,
    /// Number of the last response, 0 if there was none.
    pub(super) sent_nonce: u64,
    /// Number of the last response that was acknowledged, 0 if none was.
    pub(super) acked_nonce: u64,
    /// The last response has been neither acknowledged nor rejected.
    pub(super) outstanding: bool,
    /// Why the client rejected the last response.
    pub(super) error: Option<(i32, Text)>,
    pub(super) sent_at: Option<Instant>,
    pub(super) acked_at: Option<Instant>,
}

impl Watch {
    pub(super) fn new(kind: ResourceType) -> Self {
        Self {
            kind,
            wildcard: false,
            names: NameSet::default(),
            sent: None,
            acked: None,
            asked: BTreeSet::new(),
            asked_all: false,
            answer: false,
            holds: HashMap::new(),
            leaving: BTreeMap::new(),
            sent_nonce: 0,
            acked_nonce: 0,
            outstanding: false,
            error: None,
            sent_at: None,
            acked_at: None,
        }
    }

    /// Whether the client wants the resource of that name.
    pub(super) fn wants(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// Whether the client is waiting to be answered.
    pub(super) fn is_asked(&self) -> bool {
        self.answer || self.asked_all || !self.asked.is_empty()
    }

    /// The first request for the type on this stream.
    pub(super) fn open(&mut self, interest: Interest, names: &Names) -> Result<(), Refusal> {
        self.answer = true;
        match interest {
            Interest::Exactly(list) => {
                let list = checked(list)?;
                self.asked_all = true;
                self.set_exactly(list, names);
            }
            Interest::Change { subscribe, unsubscribe, holds } => {
                let mut add = checked(subscribe)?;
                let remove = checked(unsubscribe)?;
                let star = add.remove("*");
                self.wildcard = self.kind.is_wildcard() && (star || add.is_empty()) && !remove.contains("*");
                for (name, version) in holds {
                    let name = checked_name(name)?;
                    if !remove.contains(&name) {
                        add.insert(name.clone());
                        self.holds.insert(name, Version::parse(&version));
                    }
                }
                // With a wildcard the names held are known by it; they are no subscription of their own.
                if !self.wildcard {
                    self.names = names.change(&self.names, add, &remove);
                }
                self.check()?;
            }
        }
        Ok(())
    }

    /// The complete list of a state-of-the-world client.
    fn set_exactly(&mut self, mut list: BTreeSet<Text>, names: &Names) {
        let star = list.remove("*");
        self.wildcard = self.kind.is_wildcard() && (star || list.is_empty());
        self.names = names.set(list);
    }

    /// A later list of a state-of-the-world client.
    pub(super) fn exactly(&mut self, list: Vec<String>, names: &Names) -> Result<(), Refusal> {
        let same = list.len() == self.names.len() && list.iter().all(|name| self.names.contains(name));
        if same && (!list.is_empty() || self.wildcard) {
            return Ok(());
        }
        let (wildcard, before) = (self.wildcard, self.names.clone());
        self.set_exactly(checked(list)?, names);
        self.check()?;
        if self.kind.is_wildcard() {
            // These are answered whole whenever the list changes (X07).
            if self.wildcard != wildcard || self.names != before {
                self.asked_all = true;
                self.answer = true;
            }
        } else {
            self.asked.retain(|name| self.names.contains(name));
            self.asked.extend(self.names.iter().filter(|name| !before.contains(name)).cloned());
            self.answer |= !self.asked.is_empty();
        }
        Ok(())
    }

    /// A later change of a delta client's subscription.
    pub(super) fn change(
        &mut self,
        subscribe: Vec<String>,
        unsubscribe: Vec<String>,
        names: &Names,
    ) -> Result<(), Refusal> {
        if subscribe.is_empty() && unsubscribe.is_empty() {
            return Ok(());
        }
        let mut add = checked(subscribe)?;
        let mut remove = checked(unsubscribe)?;
        let star = add.remove("*") && self.kind.is_wildcard();
        if remove.remove("*") {
            self.wildcard = false;
        }
        if star && !self.wildcard {
            self.wildcard = true;
            self.asked_all = true;
        }
        // Whoever asks by name has forgotten, or never had it: answer, whatever we believe it holds.
        self.asked.extend(add.iter().filter(|name| !remove.contains(*name)).cloned());
        self.answer |= star || !add.is_empty();
        self.names = names.change(&self.names, add, &remove);
        for name in &remove {
            if !self.wants(name) {
                self.asked.remove(name);
                self.leaving.remove(name);
            }
        }
        self.check()
    }

    fn check(&self) -> Result<(), Refusal> {
        if self.names.len() > MAX_NAMES {
            return Err(Refusal::Exhausted(format!("more than {MAX_NAMES} resource names of one type")));
        }
        Ok(())
    }
}

fn checked(names: Vec<String>) -> Result<BTreeSet<Text>, Refusal> {
    names.into_iter().map(checked_name).collect()
}

fn checked_name(name: String) -> Result<Text, Refusal> {
    if name.len() > MAX_NAME {
        return Err(Refusal::Invalid(format!("a resource name is longer than {MAX_NAME} bytes")));
    }
    Ok(Text::from(name))
}
