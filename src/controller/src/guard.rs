//! Calls of the controller's own functions.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sluice_tasks::Panicked;

/// The result of a function of the controller, with its error as text. A panic is an error: it concerns one object only,
/// and a source that ended with it would never be synced.
pub(crate) fn call<T, E: Display>(function: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(function)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(payload) => Err(format!("its reader {}", Panicked::new(&*payload))),
    }
}
