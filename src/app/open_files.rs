//! The number of files that the process may open, connections included.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Raises the limit of open files to the highest one that is permitted. Returns the limit.
pub(super) fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let limit = match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(error) => {
            warn!(%error, "failed to raise the limit of open files");
            current
        }
    };
    // `None` is no limit.
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}
