//! Limits of the proxies that one caller may describe: what a client chooses is not multiplied without bound.
//!
//! Each distinct profile adds a copy of most of what its clients see of the mesh, each distinct location a copy of endpoints
//! and addresses, and each distinct proxy resources of its own. All stay while a proxy is in the dataflow, for a while after
//! its last stream. The limits apply to each authenticated identity, and to all anonymous callers together.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_model::{ClientProfile, Identity};

/// Maximum numbers of proxies, and of different profiles and locations of them; `usize::MAX` is no limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProxyLimits {
    /// Profiles of one identity.
    pub identity_profiles: usize,
    /// Profiles of all anonymous callers.
    pub anonymous_profiles: usize,
    /// Locations of one identity.
    pub identity_locations: usize,
    /// Locations of all anonymous callers.
    pub anonymous_locations: usize,
    /// Proxies of one identity.
    pub identity_proxies: usize,
    /// Proxies of all anonymous callers.
    pub anonymous_proxies: usize,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self {
            identity_profiles: 16,
            anonymous_profiles: 8,
            identity_locations: 32,
            anonymous_locations: 64,
            identity_proxies: 5000,
            anonymous_proxies: 10_000,
        }
    }
}

/// A new proxy that exceeds a limit.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{owner} already connected {limit} {what}, the maximum ({flag})")]
pub(crate) struct ProxyLimitError {
    /// Its reason in metrics.
    pub(crate) reason: &'static str,
    owner: String,
    limit: usize,
    what: &'static str,
    flag: &'static str,
}

/// The identity that connected a proxy; `None` for all anonymous callers.
pub(crate) type ProxyOwner = Option<Identity>;

/// Counts the proxies of each owner, and their profiles and locations.
#[derive(Debug)]
pub(crate) struct ProxyUsage {
    limits: ProxyLimits,
    owners: Mutex<HashMap<ProxyOwner, OwnerUsage>>,
}

#[derive(Debug, Default)]
struct OwnerUsage {
    proxies: usize,
    /// The number of proxies with each profile, by hash.
    profiles: HashMap<[u64; 2], usize>,
    /// The number of proxies in each location, by hash.
    locations: HashMap<[u64; 2], usize>,
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
            *usage.profiles.entry(profile.properties).or_default() += 1;
            *usage.locations.entry(profile.location).or_default() += 1;
        }
        added
    }

    fn check(
        &self,
        usage: Option<&OwnerUsage>,
        owner: &ProxyOwner,
        profile: ClientProfile,
    ) -> Result<(), ProxyLimitError> {
        let (empty, limits) = (OwnerUsage::default(), &self.limits);
        let usage = usage.unwrap_or(&empty);
        let free = |counts: &HashMap<[u64; 2], usize>, hash: [u64; 2], limit: usize| {
            counts.contains_key(&hash) || counts.len() < limit
        };
        let refused = |reason, what, (limit, flag): (usize, &'static str)| {
            let owner =
                owner.as_ref().map_or_else(|| "anonymous callers have".to_owned(), |owner| format!("{owner} has"));
            Err(ProxyLimitError { reason, owner, limit, what, flag })
        };
        let (profiles, locations, proxies) = match owner {
            Some(_) => (
                (limits.identity_profiles, "--maxProfilesPerIdentity"),
                (limits.identity_locations, "--maxLocationsPerIdentity"),
                (limits.identity_proxies, "--maxProxiesPerIdentity"),
            ),
            None => (
                (limits.anonymous_profiles, "--maxAnonymousProfiles"),
                (limits.anonymous_locations, "--maxAnonymousLocations"),
                (limits.anonymous_proxies, "--maxAnonymousProxies"),
            ),
        };
        if usage.proxies >= proxies.0 {
            return refused("proxies", "proxies", proxies);
        }
        if !free(&usage.profiles, profile.properties, profiles.0) {
            let what = "different profiles of proxies (type, version, address families, certificate files, PROXY_CONFIG, \
                        ports, metadata that EnvoyFilters match and the like)";
            return refused("profiles", what, profiles);
        }
        if !free(&usage.locations, profile.location, locations.0) {
            return refused("locations", "different locations of proxies (cluster, network, locality)", locations);
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
    for (counts, hash) in [(&mut usage.profiles, profile.properties), (&mut usage.locations, profile.location)] {
        if let Some(count) = counts.get_mut(&hash) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&hash);
            }
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
        let limits = ProxyLimits {
            identity_profiles: 1,
            anonymous_profiles: 2,
            identity_locations: 2,
            identity_proxies: 3,
            anonymous_proxies: 4,
            ..ProxyLimits::default()
        };
        let usage = ProxyUsage::new(limits);
        let (a, b) = (Some(Identity::new("td", "shop", "a")), Some(Identity::new("td", "shop", "b")));
        let profile = |number: u64| ClientProfile { properties: [number, 0], location: [7, 7] };
        let reason = |owner: &ProxyOwner, number| usage.add(owner, profile(number), None).map_err(|error| error.reason);
        assert_eq!([reason(&a, 1), reason(&a, 1), reason(&a, 2)], [Ok(()), Ok(()), Err("profiles")]);
        assert_eq!([reason(&a, 1), reason(&a, 1)], [Ok(()), Err("proxies")]);
        assert_eq!(reason(&b, 2), Ok(()), "identities do not share a limit");
        let at = |location: u64| ClientProfile { location: [location, 0], ..profile(2) };
        usage.add(&b, at(1), None).expect("a second location");
        assert_eq!(usage.add(&b, at(2), None).map_err(|error| error.reason), Err("locations"));
        usage.remove(&b, at(1));
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
        assert_eq!(usage.owners()[&None].profiles, HashMap::from([([2, 0], 1), ([4, 0], 2)]));
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
