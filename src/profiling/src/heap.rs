//! The heap, as jemalloc samples it.

use crate::ProfileError;

/// The profile. This blocks while it is written and symbols are looked up.
pub(crate) fn profile() -> Result<Vec<u8>, ProfileError> {
    let control = jemalloc_pprof::PROF_CTL.as_ref().ok_or(ProfileError::HeapNotSampled)?;
    let mut control = control.blocking_lock();
    if !control.activated() {
        return Err(ProfileError::HeapNotSampled);
    }
    control.dump_pprof().map_err(|error| ProfileError::Failed(format!("{error:#}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_setting_the_error_names_it() {
        let error = profile().expect_err("tests run without it");
        assert!(error.to_string().contains("_RJEM_MALLOC_CONF=prof:true"), "{error}");
    }
}
