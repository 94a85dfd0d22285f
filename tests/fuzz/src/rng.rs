//! Reproducible random numbers.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// A sequence of numbers that depends only on its seed, or on bytes.
#[derive(Clone, Debug)]
pub struct FuzzRng {
    state: u64,
    /// Bytes that choices are taken from, in reverse order.
    bytes: Vec<u8>,
}

impl FuzzRng {
    /// The sequence of turn `turn` of a run with that seed, so that each turn can be repeated by itself.
    #[must_use]
    pub fn new(seed: u64, turn: u64) -> Self {
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ turn.wrapping_mul(0xd1b5_4a32_d192_ed03);
        Self { state, bytes: Vec::new() }
    }

    /// Choices that bytes decide, so that a change of a byte changes one choice. After the last byte the sequence continues
    /// with numbers that depend on all bytes.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Self { state: hasher.finish(), bytes: bytes.iter().rev().copied().collect() }
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        if let Some(number) = self.take(8) {
            return number;
        }
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let few = match limit {
            0..=0x100 => self.take(1),
            0x101..=0x1_0000 => self.take(2),
            _ => None,
        };
        let number = few.unwrap_or_else(|| self.number() >> 1);
        usize::try_from(number).unwrap_or_default() % limit.max(1)
    }

    /// The number in the next bytes; `None` if there are not as many.
    fn take(&mut self, count: usize) -> Option<u64> {
        let rest = self.bytes.len().checked_sub(count)?;
        Some(self.bytes.drain(rest..).rev().fold(0, |number, byte| number << 8 | u64::from(byte)))
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A random element.
    pub fn choose<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }

    /// Puts the items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_decide_choices_in_order() {
        let mut rng = FuzzRng::of_bytes(&[7, 1, 2, 9]);
        assert_eq!((rng.below(5), rng.below(1000), rng.below(10)), (2, 258, 9));
        let (mut one, mut other) = (FuzzRng::of_bytes(&[1]), FuzzRng::of_bytes(&[2]));
        assert_ne!((one.below(3), one.number()).1, (other.below(3), other.number()).1);
    }
}
