//! A client's subscription to one type, and the resources of the type that it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use sluice_model::{ResourceType, Text};

use super::held_resources::HeldResources;
use crate::limits::MAX_RESOURCE_NAME_BYTES;
use crate::name_list::NameList;
use crate::name_set::{CallerNames, NameSet};
use crate::request::{Interest, StreamError};
use crate::store::{ResolvedResource, TypeSnapshot};
use crate::version::Version;

/// Names of [`ResentResources`] that are kept.
const MAX_RESENT_NAMES: usize = 1024;

/// A client's subscription to one type, and the resources of the type that it holds.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) kind: ResourceType,
    /// The client names each resource that it wants: an empty list is not the wildcard.
    pub(super) names_only: bool,
    /// The client subscribes to all resources in its scope.
    pub(super) wildcard: bool,
    /// The names that the client subscribes to.
    pub(super) names: NameSet,
    /// The client was sent all changes up to this snapshot.
    pub(super) sent: Option<TypeSnapshot>,
    /// The client has acknowledged `sent`.
    is_acked: bool,
    /// The last acknowledged snapshot, if it is not `sent`.
    acked_before: Option<TypeSnapshot>,
    /// Names to send even if the client already holds them.
    pub(super) requested: BTreeSet<Text>,
    /// All subscribed resources are to be sent.
    pub(super) resend_all: bool,
    /// Resources that responses since the last acknowledged one sent again.
    resent: ResentResources,
    /// The client waits for a response, even an empty one.
    pub(super) response_due: bool,
    /// The resources that the client holds from an earlier stream.
    pub(super) holds: HeldResources,
    /// Removed resources that the client keeps until their replacements are in use.
    pub(super) deferred_removals: BTreeMap<Text, ResolvedResource>,
    /// Number of the last response, 0 if there was none.
    pub(super) sent_nonce: u64,
    /// Number of the last response that was acknowledged, 0 if none was.
    pub(super) acked_nonce: u64,
    /// The last response has been neither acknowledged nor rejected.
    pub(super) outstanding: bool,
    /// The error with which the client rejected the last response.
    pub(super) error: Option<(i32, Text)>,
    pub(super) sent_at: Option<Instant>,
    pub(super) acked_at: Option<Instant>,
    /// When the first response since the last acknowledged one was sent, while the last one is not acknowledged.
    pub(super) unacked_since: Option<Instant>,
}

/// Resources that were sent although an earlier snapshot already had them: the client had not subscribed to them then, or no longer
/// holds them.
#[derive(Debug, Default)]
pub(super) struct ResentResources {
    names: BTreeSet<Text>,
    /// All of them were sent.
    all: bool,
}

impl ResentResources {
    fn contains(&self, name: &str) -> bool {
        self.all || self.names.contains(name)
    }

    /// Adds those of a further response. Of a client that acknowledges nothing, not all names are kept.
    fn join(&mut self, mut later: Self) {
        self.all |= later.all || self.names.len() + later.names.len() > MAX_RESENT_NAMES;
        match self.all {
            true => self.names = BTreeSet::new(),
            false => self.names.append(&mut later.names),
        }
    }
}

impl Subscription {
    pub(super) fn new(kind: ResourceType, names_only: bool) -> Self {
        Self {
            kind,
            names_only,
            wildcard: false,
            names: NameSet::default(),
            sent: None,
            is_acked: false,
            acked_before: None,
            requested: BTreeSet::new(),
            resend_all: false,
            resent: ResentResources::default(),
            response_due: false,
            holds: HeldResources::default(),
            deferred_removals: BTreeMap::new(),
            sent_nonce: 0,
            acked_nonce: 0,
            outstanding: false,
            error: None,
            sent_at: None,
            acked_at: None,
            unacked_since: None,
        }
    }

    /// The version of a resource that the client was sent. A client that has just subscribed to it was sent none, although
    /// [`Self::sent`] has it.
    pub(super) fn sent_version(&self, name: &str) -> Option<Version> {
        if self.resend_all || self.requested.contains(name) {
            return None;
        }
        self.sent.as_ref().and_then(|view| self.version_in(view, name))
    }

    /// The version of a resource that the client acknowledged.
    pub(super) fn acked_version(&self, name: &str) -> Option<Version> {
        if self.resend_all || self.requested.contains(name) || self.resent.contains(name) {
            return None;
        }
        self.acked().and_then(|view| self.version_in(view, name))
    }

    /// Takes what is to be sent although the client may hold it, because a response with it is being sent.
    pub(super) fn take_resent(&mut self) -> ResentResources {
        let all = std::mem::take(&mut self.resend_all);
        ResentResources { names: std::mem::take(&mut self.requested), all }
    }

    /// The last snapshot that the client acknowledged.
    pub(super) fn acked(&self) -> Option<&TypeSnapshot> {
        if self.is_acked { self.sent.as_ref() } else { self.acked_before.as_ref() }
    }

    /// The client has acknowledged the last response.
    pub(super) fn set_acked(&mut self) {
        self.is_acked = true;
        self.acked_before = None;
        self.unacked_since = None;
        self.resent = ResentResources::default();
    }

    /// The client has rejected the last response: later snapshots without a response do not count as acknowledged.
    pub(super) fn set_rejected(&mut self) {
        if std::mem::take(&mut self.is_acked) {
            self.acked_before.clone_from(&self.sent);
        }
    }

    /// A response is being sent; the client held the snapshot `before`.
    pub(super) fn set_unacked(&mut self, before: Option<TypeSnapshot>, resent: ResentResources, now: Instant) {
        self.unacked_since.get_or_insert(now);
        self.resent.join(resent);
        if std::mem::take(&mut self.is_acked) {
            self.acked_before = before;
        }
    }

    /// Whether the client subscribes to the resource of this name, as far as it was sent any.
    pub(super) fn wants(&self, name: &str) -> bool {
        self.covers(name) && !self.sent.as_ref().is_some_and(|view| self.leaves_out(view, name))
    }

    /// Whether the subscription covers this name. A resource of a client that has it on demand may be left out nevertheless.
    pub(super) fn covers(&self, name: &str) -> bool {
        let by_prefix = || {
            let whole = name.rsplit_once('/').filter(|_| self.kind.is_by_prefix());
            whole.is_some_and(|(whole, _)| self.names.contains(whole))
        };
        self.wildcard || self.names.contains(name) || by_prefix()
    }

    /// Whether a resource is left out of the subscription to all, because the client has not named it.
    pub(super) fn leaves_out(&self, view: &TypeSnapshot, name: &str) -> bool {
        self.wildcard && view.is_on_demand(name) && !self.names.contains(name)
    }

    /// The version of a resource in a snapshot, if the subscription has it there.
    pub(super) fn version_in(&self, view: &TypeSnapshot, name: &str) -> Option<Version> {
        if self.leaves_out(view, name) { None } else { view.version(name) }
    }

    /// Whether the client waits for a response.
    pub(super) fn is_waiting(&self) -> bool {
        self.response_due || self.resend_all || !self.requested.is_empty()
    }

    /// The first request for the type on this stream.
    pub(super) fn open(&mut self, interest: Interest, names: &CallerNames) -> Result<(), StreamError> {
        self.response_due = true;
        match interest {
            Interest::Exactly(list) => {
                check(&list)?;
                self.resend_all = true;
                self.set_exactly(&list, names);
            }
            Interest::Change { subscribe, unsubscribe, holds } => {
                check(&subscribe)?;
                check(&unsubscribe)?;
                check(holds.names())?;
                let all = self.is_of_all(&subscribe) || self.held_all_virtual_hosts(&subscribe, &holds);
                self.wildcard = self.allows_wildcard() && all && !unsubscribe.has("*");
                // A wildcard covers the names that the client holds; they are not separate subscriptions. Virtual hosts are
                // covered by their route table.
                if self.kind.is_by_prefix() && !self.wildcard {
                    self.names = names.set(&subscribe);
                } else if self.has_all_virtual_hosts() {
                    self.requested = texts(&subscribe);
                    self.requested.remove("*");
                } else if self.wildcard {
                    // A client that has resources on demand names those that it needs besides the wildcard.
                    let mut named = texts(&subscribe);
                    named.remove("*");
                    if !named.is_empty() {
                        self.names = names.change(&self.names, named, &BTreeSet::new());
                    }
                } else {
                    self.names = names.union(&subscribe, holds.names());
                    if !unsubscribe.is_empty() {
                        self.names = names.change(&self.names, BTreeSet::new(), &texts(&unsubscribe));
                    }
                }
                self.holds = HeldResources::new(holds);
            }
        }
        Ok(())
    }

    /// Drops the resources that the client reports as held, so that all resources are sent.
    pub(super) fn forget_holds(&mut self) {
        self.holds = HeldResources::default();
    }

    /// The complete list of a state-of-the-world client.
    fn set_exactly(&mut self, list: &NameList, names: &CallerNames) {
        self.wildcard = self.kind.is_wildcard() && self.is_of_all(list);
        self.names = names.set(list);
    }

    /// Whether a list stands for all resources.
    fn is_of_all(&self, list: &NameList) -> bool {
        list.has("*") || (list.is_empty() && !self.names_only)
    }

    /// A later list of a state-of-the-world client.
    pub(super) fn exactly(&mut self, list: &NameList, names: &CallerNames) -> Result<(), StreamError> {
        check(list)?;
        let (wildcard, before) = (self.wildcard, self.names.clone());
        self.set_exactly(list, names);
        if self.names == before && self.wildcard == wildcard {
            return Ok(());
        }
        if self.kind.is_wildcard() {
            // All resources of these types are sent when the list changes (X07).
            self.resend_all = true;
            self.response_due = true;
        } else {
            self.requested.retain(|name| self.names.contains(name));
            self.requested.extend(self.names.iter().filter(|name| !before.contains(name)).cloned());
            self.response_due |= !self.requested.is_empty();
        }
        Ok(())
    }

    /// A later change of a delta client's subscription.
    pub(super) fn change(
        &mut self,
        subscribe: &NameList,
        unsubscribe: &NameList,
        names: &CallerNames,
    ) -> Result<(), StreamError> {
        if subscribe.is_empty() && unsubscribe.is_empty() {
            return Ok(());
        }
        check(subscribe)?;
        check(unsubscribe)?;
        let mut add = texts(subscribe);
        let mut remove = texts(unsubscribe);
        let star = add.remove("*") && self.allows_wildcard();
        if remove.remove("*") {
            self.wildcard = false;
        }
        if star && !self.wildcard {
            self.wildcard = true;
            self.resend_all = true;
        }
        // A client that subscribes to a name again does not hold the resource, so it is sent.
        self.requested.extend(add.iter().filter(|name| !remove.contains(*name)).cloned());
        self.response_due |= star || !add.is_empty();
        if self.has_all_virtual_hosts() {
            self.check_pending_virtual_hosts()?;
        } else {
            self.names = names.change(&self.names, add, &remove);
        }
        for name in &remove {
            if !self.wants(name) {
                self.requested.remove(name);
                self.deferred_removals.remove(name);
            }
        }
        if self.kind.is_by_prefix() && !remove.is_empty() {
            let deferred = std::mem::take(&mut self.deferred_removals);
            self.deferred_removals = deferred.into_iter().filter(|(name, _)| self.covers(name)).collect();
        }
        Ok(())
    }
}

/// Checks the length of the names in a request.
fn check(names: &NameList) -> Result<(), StreamError> {
    if names.bytes().any(|name| name.len() > MAX_RESOURCE_NAME_BYTES) {
        return Err(StreamError::Invalid(format!("a resource name is longer than {MAX_RESOURCE_NAME_BYTES} bytes")));
    }
    Ok(())
}

fn texts(names: &NameList) -> BTreeSet<Text> {
    names.iter().map(Text::from).collect()
}
