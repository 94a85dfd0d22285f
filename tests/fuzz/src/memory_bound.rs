//! The memory that reading an input may take.

use allocation_counter::measure;

/// Bytes of memory at a time for each byte of the input.
const PEAK_PER_BYTE: u64 = 100;
/// All bytes that are allocated for each byte of the input. What is copied again and again takes more.
const TOTAL_PER_BYTE: u64 = 600;
/// What the findings of a small input, and one large regular expression while it is compiled, may take in addition.
const CONSTANT: u64 = 32 << 20;
/// The same for all bytes: an object may have 16 large expressions, which are compiled one after the other.
const TOTAL_CONSTANT: u64 = 16 * (34 << 20);

/// Runs `work` on an input of that size.
///
/// # Errors
/// The work takes more memory on this thread than the input allows.
pub(crate) fn bounded<T>(input_bytes: usize, work: impl FnOnce() -> T) -> Result<T, String> {
    // The descriptors are loaded once; no input is charged for them.
    sluice_proto::pool();
    let mut result = None;
    let taken = measure(|| result = Some(work()));
    let most = |for_each: u64, constant: u64| (input_bytes as u64).saturating_mul(for_each) + constant;
    let fits =
        taken.bytes_max <= most(PEAK_PER_BYTE, CONSTANT) && taken.bytes_total <= most(TOTAL_PER_BYTE, TOTAL_CONSTANT);
    let excess = || format!("{input_bytes} bytes take {} at a time, {} in all", taken.bytes_max, taken.bytes_total);
    result.filter(|_| fits).ok_or_else(excess)
}

#[cfg(test)]
mod tests {
    use super::bounded;

    #[test]
    fn work_that_takes_more_than_its_input_allows_is_an_error() {
        let allocate = |mib: usize| move || drop(std::hint::black_box(vec![1u8; mib << 20]));
        assert_eq!(bounded(1000, allocate(10)), Ok(()));
        assert!(bounded(1000, allocate(40)).is_err());
        let repeated = || (0..600).for_each(|_| allocate(1)());
        assert!(bounded(1000, repeated).is_err(), "all allocations count, not only the peak");
    }
}
