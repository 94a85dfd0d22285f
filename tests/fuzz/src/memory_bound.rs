//! The memory that reading an input may take.

use allocation_counter::measure;

use crate::violation::{Violation, violation};

/// Bytes of memory at a time for each byte of the input.
const PEAK_PER_BYTE: u64 = 100;
/// All bytes that are allocated for each byte of the input. What is copied again and again takes more.
const TOTAL_PER_BYTE: u64 = 600;
/// What the findings of a small input, and one large regular expression while it is compiled, may take in addition.
const CONSTANT: u64 = 32 << 20;
/// The same for all bytes: an object may have 16 large expressions, which are compiled one after the other.
const TOTAL_CONSTANT: u64 = 16 * (34 << 20);

/// What reading the bytes of a client may take in addition: their findings are short, and they have no regular expressions.
const CLIENT_CONSTANT: u64 = 4 << 20;
/// The same for all bytes.
const CLIENT_TOTAL_CONSTANT: u64 = 64 << 20;

/// Runs `work` on an input of that size.
///
/// # Errors
/// The work takes more memory on this thread than the input allows.
pub(crate) fn bounded<T>(input_bytes: usize, work: impl FnOnce() -> T) -> Result<T, String> {
    bounded_by(input_bytes, [CONSTANT, TOTAL_CONSTANT], work)
}

/// As [`bounded`], with the violation; `what` is what the input is.
pub(crate) fn within<T>(what: &str, input_bytes: usize, work: impl FnOnce() -> T) -> Result<T, Violation> {
    bounded(input_bytes, work).or_else(|excess| violation(&format!("memory of {what}"), excess))
}

/// As [`within`], for bytes that a client sends.
pub(crate) fn within_for_client<T>(what: &str, input_bytes: usize, work: impl FnOnce() -> T) -> Result<T, Violation> {
    let bounded = bounded_by(input_bytes, [CLIENT_CONSTANT, CLIENT_TOTAL_CONSTANT], work);
    bounded.or_else(|excess| violation(&format!("memory of {what}"), excess))
}

/// `constants` are what may be taken in addition, at a time and in all.
fn bounded_by<T>(input_bytes: usize, constants: [u64; 2], work: impl FnOnce() -> T) -> Result<T, String> {
    // The descriptors are loaded once; no input is charged for them.
    sluice_proto::pool();
    let mut result = None;
    let taken = measure(|| result = Some(work()));
    let most = |for_each: u64, constant: u64| (input_bytes as u64).saturating_mul(for_each) + constant;
    let [peak, total] = constants;
    let fits = taken.bytes_max <= most(PEAK_PER_BYTE, peak) && taken.bytes_total <= most(TOTAL_PER_BYTE, total);
    let excess = || format!("{input_bytes} bytes take {} at a time, {} in all", taken.bytes_max, taken.bytes_total);
    result.filter(|_| fits).ok_or_else(excess)
}

#[cfg(test)]
mod tests {
    use super::{bounded, within_for_client};

    #[test]
    fn work_that_takes_more_than_its_input_allows_is_an_error() {
        let allocate = |mib: usize| move || drop(std::hint::black_box(vec![1u8; mib << 20]));
        assert_eq!(bounded(1000, allocate(10)), Ok(()));
        assert!(bounded(1000, allocate(40)).is_err());
        let repeated = || (0..600).for_each(|_| allocate(1)());
        assert!(bounded(1000, repeated).is_err(), "all allocations count, not only the peak");
    }

    #[test]
    fn bytes_of_a_client_allow_memory_in_proportion_to_their_own_number() {
        let allocate = |mib: usize| move || drop(std::hint::black_box(vec![1u8; mib << 20]));
        assert_eq!(within_for_client("requests", 45, allocate(2)), Ok(()));
        let excess = within_for_client("requests", 45, allocate(8)).expect_err("45 bytes");
        assert_eq!(excess.signature, "memory of requests");
        assert_eq!(within_for_client("requests", 60 << 10, allocate(8)), Ok(()));
    }
}
