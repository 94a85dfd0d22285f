//! Look-up of hosts that contain or overlap others, without a comparison of each pair.

use std::collections::BTreeSet;

use sluice_model::Host;

/// A set of hosts and wildcards.
#[derive(Debug, Default)]
pub(crate) struct HostIndex {
    /// Names without wildcard, reversed, so that names with the same end are neighbours.
    exact: BTreeSet<Vec<u8>>,
    /// What follows the `*` of each wildcard, reversed.
    wildcards: BTreeSet<Vec<u8>>,
    /// The lengths in `wildcards`.
    lengths: BTreeSet<usize>,
}

impl HostIndex {
    pub(crate) fn insert(&mut self, host: &Host) {
        let end = reversed_end(host);
        if host.is_wildcard() {
            self.lengths.insert(end.len());
            self.wildcards.insert(end);
        } else {
            self.exact.insert(end);
        }
    }

    /// Whether a host of the set [contains](Host::contains) `host`.
    pub(crate) fn contains(&self, host: &Host) -> bool {
        let end = reversed_end(host);
        (!host.is_wildcard() && self.exact.contains(&end))
            || self.lengths.range(..=end.len()).any(|length| self.wildcards.contains(&end[..*length]))
    }

    /// Whether a host of the set [overlaps](Host::overlaps) `host`.
    pub(crate) fn overlaps(&self, host: &Host) -> bool {
        let end = reversed_end(host);
        let is_within =
            |hosts: &BTreeSet<Vec<u8>>| hosts.range(end.clone()..).next().is_some_and(|next| next.starts_with(&end));
        self.contains(host) || (host.is_wildcard() && (is_within(&self.exact) || is_within(&self.wildcards)))
    }
}

/// The name, or what follows the `*` of a wildcard, from its end to its beginning.
fn reversed_end(host: &Host) -> Vec<u8> {
    let text = host.as_str();
    text.strip_prefix('*').unwrap_or(text).bytes().rev().collect()
}

impl<'h> FromIterator<&'h Host> for HostIndex {
    fn from_iter<I: IntoIterator<Item = &'h Host>>(hosts: I) -> Self {
        let mut index = Self::default();
        hosts.into_iter().for_each(|host| index.insert(host));
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_agrees_with_the_comparison_of_each_pair() {
        let names =
            ["*", "a", "b", "a.b", "*.b", "*.a.b", "x.a.b", "*a.b", "*-x.b", "y-x.b", "c.b", "*.c", "ab", "*b", ""];
        let hosts = names.map(Host::new);
        for set in hosts.windows(3) {
            let index: HostIndex = set.iter().collect();
            for host in &hosts {
                assert_eq!(index.contains(host), set.iter().any(|other| other.contains(host)), "{set:?} {host}");
                assert_eq!(index.overlaps(host), set.iter().any(|other| other.overlaps(host)), "{set:?} {host}");
            }
        }
    }
}
