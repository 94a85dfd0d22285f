//! Samples of the CPU time of all threads.

use std::collections::HashMap;

use pprof::{ProfilerGuard, ProfilerGuardBuilder, UnresolvedReport};
use pprof_util::{StackProfile, WeightedStack};

use crate::ProfileError;

/// Samples for each second of CPU time, as in Go.
const SAMPLES_PER_SECOND: i32 = 100;
/// CPU time that a sample stands for.
const NANOSECONDS_PER_SAMPLE: f64 = 1e9 / SAMPLES_PER_SECOND as f64;

/// A thread is not sampled inside these libraries: their unwinders and allocators take locks that the sample would wait for.
const NOT_SAMPLED: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// The function that takes a sample, which is in each stack, and the frames to look for it.
const SAMPLE_FUNCTION: &str = "perf_signal_handler";
const MAX_SAMPLE_FRAMES: usize = 16;

/// The process is sampled while this exists.
pub(crate) struct Sampling(ProfilerGuard<'static>);

impl Sampling {
    pub(crate) fn start() -> Result<Self, ProfileError> {
        let profiler = ProfilerGuardBuilder::default().frequency(SAMPLES_PER_SECOND).blocklist(&NOT_SAMPLED);
        profiler.build().map(Self).map_err(ProfileError::failed)
    }

    /// Ends the sampling, and encodes the samples with the names of functions.
    pub(crate) fn finish(self) -> Result<Vec<u8>, ProfileError> {
        let report = self.0.report().build_unresolved().map_err(ProfileError::failed)?;
        drop(self);
        let cpu_time = ("cpu", "nanoseconds");
        Ok(stacks(&report).to_pprof(cpu_time, cpu_time, Some("thread".to_owned())))
    }
}

/// The stacks of a report, without the frames of the sampling itself.
fn stacks(report: &UnresolvedReport) -> StackProfile {
    let mut profile = StackProfile::default();
    for mapping in mappings::MAPPINGS.iter().flatten() {
        profile.push_mapping(mapping.clone());
    }
    let mut known = HashMap::new();
    let samples: Vec<_> = report.data.iter().collect();
    for (stack, count) in samples {
        let addresses: Vec<usize> = stack.frames.iter().map(|frame| frame.ip() as usize).collect();
        let is_sampling = |address: &usize| *known.entry(*address).or_insert_with(|| is_sample_function(*address));
        // The frame after it is that of the kernel's return from the signal.
        let own = addresses.iter().take(MAX_SAMPLE_FRAMES).position(is_sampling).map_or(0, |at| at + 2);
        // From the root to the leaf. An address of zero is no code.
        let addrs = addresses.into_iter().skip(own).filter(|address| *address != 0).rev().collect();
        let thread = String::from_utf8_lossy(&stack.thread_name[..stack.thread_name_length]).into_owned();
        let weight = i32::try_from(*count).map_or(f64::from(i32::MAX), f64::from) * NANOSECONDS_PER_SAMPLE;
        profile.push_stack(WeightedStack { addrs, weight }, Some(&thread));
    }
    profile
}

fn is_sample_function(address: usize) -> bool {
    let mut found = false;
    backtrace::resolve(address as *mut std::ffi::c_void, |symbol| {
        found |= symbol.name().is_some_and(|name| name.as_bytes().ends_with(SAMPLE_FUNCTION.as_bytes()));
    });
    found
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[inline(never)]
    fn function_that_takes_cpu_time(stop: &AtomicBool) -> u64 {
        let mut sum: u64 = 1;
        while !stop.load(Ordering::Relaxed) {
            sum = sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        sum
    }

    #[test]
    fn profile_names_the_function_that_takes_the_time_and_only_one_is_made_at_a_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let stop = AtomicBool::new(false);
        let (first, second) = std::thread::scope(|scope| {
            scope.spawn(|| function_that_takes_cpu_time(&stop));
            let profiles = runtime
                .block_on(async { tokio::join!(crate::cpu_profile(Duration::from_secs(1)), crate::heap_profile()) });
            stop.store(true, Ordering::Relaxed);
            profiles
        });
        assert!(matches!(second, Err(ProfileError::Busy)), "{second:?}");
        let mut profile = Vec::new();
        let encoded = first.expect("a profile");
        flate2::read::GzDecoder::new(&encoded[..]).read_to_end(&mut profile).expect("gzip");
        let has = |text: &str| profile.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(has("function_that_takes_cpu_time"));
        assert!(has("nanoseconds") && !has(SAMPLE_FUNCTION));
    }
}
