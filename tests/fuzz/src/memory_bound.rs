//! The memory that reading an input may take.

use allocation_counter::measure;

/// Bytes of memory at a time for each byte of the input.
const PEAK_PER_BYTE: u64 = 100;
/// All bytes that are allocated for each byte of the input. What is copied again and again takes more.
const TOTAL_PER_BYTE: u64 = 600;
/// What the findings of a small input, and compiled expressions, may take in addition.
const CONSTANT: u64 = 16 << 20;

/// Runs `work` on an input of that size.
///
/// # Errors
/// The work takes more memory on this thread than the input allows.
pub(crate) fn bounded<T>(input_bytes: usize, work: impl FnOnce() -> T) -> Result<T, String> {
    // The descriptors are loaded once; no input is charged for them.
    sluice_proto::pool();
    let mut result = None;
    let taken = measure(|| result = Some(work()));
    let most = |for_each: u64| (input_bytes as u64).saturating_mul(for_each) + CONSTANT;
    let fits = taken.bytes_max <= most(PEAK_PER_BYTE) && taken.bytes_total <= most(TOTAL_PER_BYTE);
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
        assert!(bounded(1000, allocate(20)).is_err());
        let repeated = || (0..40).for_each(|_| allocate(1)());
        assert!(bounded(1000, repeated).is_err(), "all allocations count, not only the peak");
    }
}
