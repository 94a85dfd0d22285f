//! Runs a target of [`sluice_fuzz::coverage`] in libFuzzer. `make fuzz-coverage` compiles it with instrumentation.
//!
//! `SLUICE_FUZZ_TARGET` names the target, and `SLUICE_FUZZ_CORPUS` the directory that its seeds are written to, beside a
//! dictionary of the same name with the extension `dict`. The arguments are those of libFuzzer.

#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use sluice_fuzz::coverage::CoverageTarget;

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
        if let Err(found) = TARGET.run(input) {
            panic!("{}\n{}", found.signature, found.message);
        }
    }
);
