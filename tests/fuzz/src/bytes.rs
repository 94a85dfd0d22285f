//! Mutation of bytes and texts.

use crate::rng::FuzzRng;

/// Changes bytes in up to `most` places: flips, removes, duplicates, replaces or truncates them, or inserts a part of
/// another input.
pub fn change(bytes: &mut Vec<u8>, others: &[Vec<u8>], rng: &mut FuzzRng, most: usize) {
    for _ in 0..=rng.below(most) {
        let at = rng.below(bytes.len());
        let end = (at + 1 + rng.below(16)).min(bytes.len());
        match rng.below(9) {
            0 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << rng.below(8);
                }
            }
            1 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = rng.choose(&[0, 1, 0x7f, 0x80, 0x81, 0x82, 0x84, 0xff]).copied().unwrap_or_default();
                }
            }
            2 => drop(bytes.drain(at.min(end)..end)),
            3 => {
                let piece = bytes.get(at..end).unwrap_or_default().to_vec();
                bytes.splice(at..at, piece);
            }
            4 => {
                let piece: Vec<u8> = (0..=rng.below(8)).map(|_| byte(rng)).collect();
                bytes.splice(at..at, piece);
            }
            5 => bytes.truncate(at),
            6 => {
                // Makes a length invalid.
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = byte.wrapping_add(rng.choose(&[1, 255, 2, 254, 16]).copied().unwrap_or_default());
                }
            }
            _ => {
                let Some(other) = rng.choose(others).filter(|other| !other.is_empty()) else { continue };
                let from = rng.below(other.len());
                let to = (from + 1 + rng.below(64)).min(other.len());
                bytes.splice(at..end.max(at), other.get(from..to).unwrap_or_default().iter().copied());
            }
        }
    }
}

/// A random byte.
pub fn byte(rng: &mut FuzzRng) -> u8 {
    u8::try_from(rng.below(256)).unwrap_or_default()
}

/// The same for a text. Invalid UTF-8 is replaced.
pub fn change_text(text: &mut String, others: &[Vec<u8>], rng: &mut FuzzRng, most: usize) {
    let mut bytes = std::mem::take(text).into_bytes();
    change(&mut bytes, others, rng, most);
    *text = String::from_utf8_lossy(&bytes).into_owned();
}
