//! What a client wants and holds of one type.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use sluice_model::{ResourceType, Text};

use super::holds::Holds;
use crate::xds::names::{NameSet, Names};
use crate::xds::request::{Interest, MAX_NAME, MAX_NAME_BYTES, MAX_NAMES, NameList, Refusal};
use crate::xds::store::{Found, View};

/// What a client wants and holds of one type.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) kind: ResourceType,
    /// Everything in the scope is wanted.
    pub(super) wildcard: bool,
    /// These are wanted by name.
    pub(super) names: NameSet,
    /// Up to here the client was told of every change.
    pub(super) sent: Option<View>,
    /// It has acknowledged all of that.
    in_step: bool,
    /// What it has acknowledged otherwise.
    behind: Option<View>,
    /// Names to answer whether or not the client seems to hold them.
    pub(super) asked: BTreeSet<Text>,
    /// Everything is to be answered.
    pub(super) asked_all: bool,
    /// The client waits for a response, even one with nothing in it.
    pub(super) answer: bool,
    /// What the client says it holds from an earlier stream.
    pub(super) holds: Holds,
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
            in_step: false,
            behind: None,
            asked: BTreeSet::new(),
            asked_all: false,
            answer: false,
            holds: Holds::default(),
            leaving: BTreeMap::new(),
            sent_nonce: 0,
            acked_nonce: 0,
            outstanding: false,
            error: None,
            sent_at: None,
            acked_at: None,
        }
    }

    /// Up to here the client has acknowledged.
    pub(super) fn acked(&self) -> Option<&View> {
        if self.in_step { self.sent.as_ref() } else { self.behind.as_ref() }
    }

    /// The client has acknowledged all it was told.
    pub(super) fn catches_up(&mut self) {
        self.in_step = true;
        self.behind = None;
    }

    /// The client has rejected something: what it was told and had nothing to acknowledge of counts no longer.
    pub(super) fn falls_behind(&mut self) {
        if std::mem::take(&mut self.in_step) {
            self.behind.clone_from(&self.sent);
        }
    }

    /// The client is being told more than what it was told `before`.
    pub(super) fn is_ahead_of(&mut self, before: Option<View>) {
        if std::mem::take(&mut self.in_step) {
            self.behind = before;
        }
    }

    /// Whether the client wants the resource of that name.
    pub(super) fn wants(&self, name: &str) -> bool {
        let by_prefix = || {
            let whole = name.rsplit_once('/').filter(|_| self.kind.is_by_prefix());
            whole.is_some_and(|(whole, _)| self.names.contains(whole))
        };
        self.wildcard || self.names.contains(name) || by_prefix()
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
                check(&list)?;
                self.asked_all = true;
                self.set_exactly(&list, names);
            }
            Interest::Change { subscribe, unsubscribe, holds } => {
                check(&subscribe)?;
                check(&unsubscribe)?;
                check(holds.names())?;
                let all = subscribe.has("*") || subscribe.is_empty() || self.held_by_all(&subscribe, &holds);
                self.wildcard = self.may_have_all() && all && !unsubscribe.has("*");
                // With a wildcard the names held are known by it; they are no subscription of their own.
                // Parts held are known by what they are parts of.
                if self.kind.is_by_prefix() && !self.wildcard {
                    self.names = names.set(&subscribe);
                } else if self.has_parts_of_all() {
                    self.asked = texts(&subscribe);
                    self.asked.remove("*");
                } else if !self.wildcard {
                    self.names = names.union(&subscribe, holds.names());
                    if !unsubscribe.is_empty() {
                        self.names = names.change(&self.names, BTreeSet::new(), &texts(&unsubscribe));
                    }
                }
                self.holds = Holds::new(holds);
            }
        }
        Ok(())
    }

    /// Everything is answered, whatever the client says it holds.
    pub(super) fn forget_holds(&mut self) {
        self.holds = Holds::default();
    }

    /// The complete list of a state-of-the-world client.
    fn set_exactly(&mut self, list: &NameList, names: &Names) {
        self.wildcard = self.kind.is_wildcard() && (list.is_empty() || list.has("*"));
        self.names = names.set(list);
    }

    /// A later list of a state-of-the-world client.
    pub(super) fn exactly(&mut self, list: &NameList, names: &Names) -> Result<(), Refusal> {
        check(list)?;
        let (wildcard, before) = (self.wildcard, self.names.clone());
        self.set_exactly(list, names);
        if self.names == before && self.wildcard == wildcard {
            return Ok(());
        }
        if self.kind.is_wildcard() {
            // These are answered whole whenever the list changes (X07).
            self.asked_all = true;
            self.answer = true;
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
        subscribe: &NameList,
        unsubscribe: &NameList,
        names: &Names,
    ) -> Result<(), Refusal> {
        if subscribe.is_empty() && unsubscribe.is_empty() {
            return Ok(());
        }
        check(subscribe)?;
        check(unsubscribe)?;
        let mut add = texts(subscribe);
        let mut remove = texts(unsubscribe);
        let star = add.remove("*") && self.may_have_all();
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
        if self.has_parts_of_all() {
            self.check_on_demand()?;
        } else {
            self.names = names.change(&self.names, add, &remove);
        }
        for name in &remove {
            if !self.wants(name) {
                self.asked.remove(name);
                self.leaving.remove(name);
            }
        }
        if self.names.len() > MAX_NAMES || self.names.bytes() > MAX_NAME_BYTES {
            return Err(too_many());
        }
        Ok(())
    }
}

/// The limits of one request.
fn check(names: &NameList) -> Result<(), Refusal> {
    if names.len() > MAX_NAMES {
        return Err(too_many());
    }
    if names.bytes().any(|name| name.len() > MAX_NAME) {
        return Err(Refusal::Invalid(format!("a resource name is longer than {MAX_NAME} bytes")));
    }
    Ok(())
}

fn too_many() -> Refusal {
    Refusal::Exhausted(format!("more than {MAX_NAMES} resource names of one type, or {MAX_NAME_BYTES} bytes of them"))
}

fn texts(names: &NameList) -> BTreeSet<Text> {
    names.iter().map(Text::from).collect()
}
