//! Content versions: equal content has an equal version on every replica.

use std::fmt::{self, Write as _};

use rapidhash::v3::rapidhash_v3;

/// A number as 16 hexadecimal digits. Each response contains several, and formatting takes longer.
pub(crate) fn hex_digits(number: u64) -> [u8; 16] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    std::array::from_fn(|at| DIGITS[(number >> (60 - 4 * at)) as usize & 0xf])
}

/// Version of a resource: a hash of its content with a fixed seed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Version(u64);

impl Version {
    /// The version of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(rapidhash_v3(bytes))
    }

    /// Parses a version that a client sent; `None` if it does not have the form of a version.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 16 {
            return None;
        }
        u64::from_str_radix(text, 16).ok().map(Self)
    }

    /// Its text.
    pub(crate) fn digits(self) -> [u8; 16] {
        hex_digits(self.0)
    }

    /// Hash of this version together with a name, to be summed into a [`Digest`].
    fn named(self, name: &[u8]) -> u64 {
        let name = rapidhash_v3(name);
        let mut both = [0; 16];
        both[..8].copy_from_slice(&name.to_le_bytes());
        both[8..].copy_from_slice(&self.0.to_le_bytes());
        rapidhash_v3(&both)
    }

    /// This version combined with another one; the order matters.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let mut both = [0; 16];
        both[..8].copy_from_slice(&self.0.to_le_bytes());
        both[8..].copy_from_slice(&other.0.to_le_bytes());
        Self(rapidhash_v3(&both))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digits().iter().try_for_each(|digit| f.write_char(char::from(*digit)))
    }
}

/// Version of a set of named resources, independent of their order. Members are added and removed one by one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Digest(u64);

impl Digest {
    /// Adds a member.
    pub(crate) fn add(&mut self, name: &[u8], version: Version) {
        self.0 = self.0.wrapping_add(version.named(name));
    }

    /// Removes a member.
    pub(crate) fn remove(&mut self, name: &[u8], version: Version) {
        self.0 = self.0.wrapping_sub(version.named(name));
    }

    /// Adds all members of another set.
    pub(crate) fn join(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }

    /// The version of the set.
    pub(crate) fn version(self) -> Version {
        Version(rapidhash_v3(&self.0.to_le_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_parsed_back() {
        for number in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
            let version = Version(number);
            assert_eq!(version.to_string(), format!("{number:016x}"));
            assert_eq!(Version::parse(&version.to_string()), Some(version));
        }
    }
}
