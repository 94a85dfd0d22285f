//! Runs a target of [`sluice_fuzz::coverage`] in libFuzzer. `make fuzz-coverage` compiles it with instrumentation.
//!
//! `SLUICE_FUZZ_TARGET` names the target, and `SLUICE_FUZZ_CORPUS` the directory that its seeds are written to, beside a
//! dictionary of the same name with the extension `dict`. The arguments are those of libFuzzer.

#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use cap::Cap;
use libfuzzer_sys::fuzz_target;
use sluice_fuzz::coverage::CoverageTarget;

/// Largest number of bytes that one input may allocate at a time. libFuzzer's own limit (`-malloc_limit_mb`) needs a sanitizer.
const MAX_INPUT_MEMORY_BYTES: usize = 64 << 20;

#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

static TARGET: LazyLock<CoverageTarget> = LazyLock::new(|| {
    let name = std::env::var("SLUICE_FUZZ_TARGET").unwrap_or_default();
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases");
    CoverageTarget::new(&name, &cases).unwrap_or_else(|error| panic!("SLUICE_FUZZ_TARGET: {error:#}"))
});

fuzz_target!(
    init: {
        if let Some(corpus) = std::env::var_os("SLUICE_FUZZ_CORPUS").map(PathBuf::from) {
            TARGET.write_corpus(&corpus, &corpus.with_extension("dict")).unwrap_or_else(|error| panic!("{error:#}"));
        }
    },
    |input: &[u8]| {
        let limit = ALLOCATOR.allocated() + MAX_INPUT_MEMORY_BYTES;
        ALLOCATOR.set_limit(limit).unwrap_or_else(|error| panic!("limit memory: {error:?}"));
        if let Err(found) = TARGET.run(input) {
            panic!("{}\n{}", found.signature, found.message);
        }
    }
);
