//! Embeds the charts of `manifests/charts`, and the CRDs of the file that the variable `EMBEDDED_CRDS` names.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let charts = Path::new(&env::var("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../../manifests/charts");
    let mut files = Vec::new();
    collect(&charts, &mut files)?;
    files.sort();
    let mut code = String::from("&[\n");
    for file in &files {
        let name = file.strip_prefix(&charts).unwrap_or(file);
        writeln!(code, "    ({:?}, include_str!({:?})),", name.display().to_string(), fs::canonicalize(file)?)
            .unwrap_or_default();
    }
    println!("cargo:rerun-if-env-changed=EMBEDDED_CRDS");
    if let Some(crds) = env::var_os("EMBEDDED_CRDS").filter(|file| !file.is_empty()) {
        let crds = fs::canonicalize(crds)?;
        println!("cargo:rerun-if-changed={}", crds.display());
        writeln!(code, "    (\"base/files/istio.yaml\", include_str!({crds:?})),").unwrap_or_default();
    }
    code.push_str("]\n");
    let out = PathBuf::from(env::var("OUT_DIR").unwrap_or_default()).join("charts.rs");
    fs::write(out, code)
}

/// Adds the files below a directory.
fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo:rerun-if-changed={}", directory.display());
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
