//! Profiles of the process in the format of pprof, which `go tool pprof` reads.
//!
//! Nothing is sampled until a profile is requested, except a heap profile: jemalloc samples allocations from the start if
//! `_RJEM_MALLOC_CONF` contains `prof:true`, and never otherwise.

mod cpu;
mod heap;

use std::time::Duration;

use tokio::sync::Semaphore;

/// Longest time of a CPU profile.
pub const MAX_CPU_TIME: Duration = Duration::from_secs(120);

/// The setting of jemalloc, in the environment of the process, that samples the heap.
pub const HEAP_SETTING: &str = "_RJEM_MALLOC_CONF=prof:true";

/// Profiles are made one at a time: the timer and the signal of samples belong to the process.
static PROFILES: Semaphore = Semaphore::const_new(1);

/// A profile that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Another one is in progress. Retrying later helps.
    #[error("another profile is in progress; try again later")]
    Busy,
    /// The heap is not sampled. It cannot be started in a running process.
    #[error(
        "the heap is not sampled: restart the process with {HEAP_SETTING} in its environment; without a restart, \
         /debug/collections has the number of stored records by collection, and /metrics the memory of the process"
    )]
    HeapNotSampled,
    /// The profiler failed, for example because it has no temporary directory that it can write to.
    #[error("the profile cannot be made: {0}")]
    Failed(String),
}

impl ProfileError {
    fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The CPU time that functions take for a while, at most [`MAX_CPU_TIME`]: a gzipped pprof profile. Sampling ends early if the
/// future is dropped.
///
/// # Errors
/// If another profile is in progress, and if the profiler cannot be started.
pub async fn cpu_profile(time: Duration) -> Result<Vec<u8>, ProfileError> {
    let permit = PROFILES.try_acquire().map_err(|_| ProfileError::Busy)?;
    let sampling = cpu::Sampling::start()?;
    tokio::time::sleep(time.min(MAX_CPU_TIME)).await;
    let encode = move || {
        let profile = sampling.finish();
        drop(permit);
        profile
    };
    tokio::task::spawn_blocking(encode).await.map_err(ProfileError::failed)?
}

/// The bytes in use by the functions that allocated them: a gzipped pprof profile.
///
/// # Errors
/// If another profile is in progress, and if the heap is not sampled.
pub async fn heap_profile() -> Result<Vec<u8>, ProfileError> {
    let permit = PROFILES.try_acquire().map_err(|_| ProfileError::Busy)?;
    let encode = move || {
        let profile = heap::profile();
        drop(permit);
        profile
    };
    tokio::task::spawn_blocking(encode).await.map_err(ProfileError::failed)?
}
