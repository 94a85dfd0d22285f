//! Limits of the proxies that one caller may describe: what a client chooses is not multiplied without bound.
//!
//! Each distinct profile adds a copy of what its clients see of the mesh, and each distinct proxy adds resources of its
//! own. Both stay while a proxy is in the dataflow, for a while after its last stream. The limits apply to each
//! authenticated identity, and to all anonymous callers together.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_model::Identity;

/// A hash of what a proxy states about itself and that the resources it shares with others are built for.
pub type ClientProfile = [u64; 2];

/// Maximum numbers of proxies and of profiles; `usize::MAX` is no limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProxyLimits {
    /// Profiles of one identity.
    pub identity_profiles: usize,
    /// Profiles of all anonymous callers.
    pub anonymous_profiles: usize,
    /// Proxies of one identity.
    pub identity_proxies: usize,
    /// Proxies of all anonymous callers.
    pub anonymous_proxies: usize,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self { identity_profiles: 32, anonymous_profiles: 64, identity_proxies: 5000, anonymous_proxies: 10_000 }
    }
}

/// A new proxy that exceeds a limit.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum ProxyLimitError {
    /// The caller has too many profiles.
    #[error(
        "{owner} already connected proxies with {limit} different profiles, the maximum ({flag}); proxies have different \
         profiles if they differ in cluster, network, locality, address families, interception mode, certificate files, \
         PROXY_CONFIG or the like"
    )]
    Profiles { owner: String, limit: usize, flag: &'static str },
    /// The caller has too many proxies.
    #[error("{owner} already connected {limit} proxies, the maximum ({flag})")]
    Proxies { owner: String, limit: usize, flag: &'static str },
}

impl ProxyLimitError {
    /// The reason in metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Profiles { .. } => "profiles",
            Self::Proxies { .. } => "proxies",
        }
    }
}

/// The identity that connected a proxy; `None` for all anonymous callers.
pub(crate) type ProxyOwner = Option<Identity>;

/// Counts the proxies and profiles of each owner.
#[derive(Debug)]
pub(crate) struct ProxyUsage {
    limits: ProxyLimits,
    owners: Mutex<HashMap<ProxyOwner, OwnerUsage>>,
}

#[derive(Debug, Default)]
struct OwnerUsage {
    proxies: usize,
    /// The number of proxies with each profile.
    profiles: HashMap<ClientProfile, usize>,
}

impl ProxyUsage {
    pub(crate) fn new(limits: ProxyLimits) -> Self {
        Self { limits, owners: Mutex::default() }
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<ProxyOwner, OwnerUsage>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a new proxy. One that replaces another proxy takes its place.
    pub(crate) fn add(
        &self,
        owner: &ProxyOwner,
        profile: ClientProfile,
        replaced: Option<(&ProxyOwner, ClientProfile)>,
    ) -> Result<(), ProxyLimitError> {
        let mut owners = self.owners();
        if let Some((owner, profile)) = replaced {
            release(&mut owners, owner, profile);
        }
        let added = self.check(owners.get(owner), owner, profile);
        // A refused proxy replaces nothing.
        let counted = if added.is_ok() { Some((owner, profile)) } else { replaced };
        if let Some((owner, profile)) = counted {
            let usage = owners.entry(owner.clone()).or_default();
            usage.proxies += 1;
            *usage.profiles.entry(profile).or_default() += 1;
        }
        added
    }

    fn check(
        &self,
        usage: Option<&OwnerUsage>,
        owner: &ProxyOwner,
        profile: ClientProfile,
    ) -> Result<(), ProxyLimitError> {
        let limits = &self.limits;
        let (profiles, proxies) = match owner {
            Some(_) => (
                (limits.identity_profiles, "--maxProfilesPerIdentity"),
                (limits.identity_proxies, "--maxProxiesPerIdentity"),
            ),
            None => (
                (limits.anonymous_profiles, "--maxAnonymousProfiles"),
                (limits.anonymous_proxies, "--maxAnonymousProxies"),
            ),
        };
        let name =
            || owner.as_ref().map_or_else(|| "anonymous callers have".to_owned(), |owner| format!("{owner} has"));
        if usage.map_or(0, |usage| usage.proxies) >= proxies.0 {
            return Err(ProxyLimitError::Proxies { owner: name(), limit: proxies.0, flag: proxies.1 });
        }
        let known = usage.is_some_and(|usage| usage.profiles.contains_key(&profile));
        if !known && usage.map_or(0, |usage| usage.profiles.len()) >= profiles.0 {
            return Err(ProxyLimitError::Profiles { owner: name(), limit: profiles.0, flag: profiles.1 });
        }
        Ok(())
    }

    /// Removes a proxy from the count.
    pub(crate) fn remove(&self, owner: &ProxyOwner, profile: ClientProfile) {
        release(&mut self.owners(), owner, profile);
    }
}

fn release(owners: &mut HashMap<ProxyOwner, OwnerUsage>, owner: &ProxyOwner, profile: ClientProfile) {
    let Some(usage) = owners.get_mut(owner) else { return };
    usage.proxies = usage.proxies.saturating_sub(1);
    if let Some(count) = usage.profiles.get_mut(&profile) {
        *count -= 1;
        if *count == 0 {
            usage.profiles.remove(&profile);
        }
    }
    if usage.proxies == 0 {
        owners.remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_identity_and_all_anonymous_callers_have_limits() {
        let limits =
            ProxyLimits { identity_profiles: 1, anonymous_profiles: 2, identity_proxies: 3, anonymous_proxies: 4 };
        let usage = ProxyUsage::new(limits);
        let (a, b) = (Some(Identity::new("td", "shop", "a")), Some(Identity::new("td", "shop", "b")));
        let profile = |number: u64| [number, 0];
        let reason =
            |owner: &ProxyOwner, number| usage.add(owner, profile(number), None).map_err(|error| error.reason());
        assert_eq!([reason(&a, 1), reason(&a, 1), reason(&a, 2)], [Ok(()), Ok(()), Err("profiles")]);
        assert_eq!([reason(&a, 1), reason(&a, 1)], [Ok(()), Err("proxies")]);
        assert_eq!(reason(&b, 2), Ok(()), "identities do not share a limit");
        assert_eq!([reason(&None, 1), reason(&None, 2), reason(&None, 3)], [Ok(()), Ok(()), Err("profiles")]);
        let error = usage.add(&a, profile(1), None).expect_err("over the limit").to_string();
        assert!(
            error.contains("spiffe://td/ns/shop/sa/a") && error.contains("3") && error.contains("--max"),
            "{error}"
        );

        usage.remove(&None, profile(1));
        assert_eq!(reason(&None, 3), Ok(()), "a profile that no proxy has any more is free");
        let replaces = |old: u64, new: u64| usage.add(&None, profile(new), Some((&None, profile(old))));
        assert_eq!(replaces(3, 4), Ok(()));
        usage.add(&None, profile(4), None).expect("below the limit");
        assert!(replaces(4, 5).is_err(), "another proxy keeps profile 4");
        assert_eq!(usage.owners()[&None].profiles, HashMap::from([(profile(2), 1), (profile(4), 2)]));
        for number in [2, 4, 4] {
            usage.remove(&None, profile(number));
        }
        for owner in [&a, &a, &a] {
            usage.remove(owner, profile(1));
        }
        usage.remove(&b, profile(2));
        assert!(usage.owners().is_empty(), "nothing stays");
    }
}
