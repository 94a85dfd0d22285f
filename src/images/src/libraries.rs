//! The shared libraries of a binary.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The shared libraries that the loader of this machine finds for a binary, and the loader itself.
pub(crate) fn shared_libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    ensure!(binary.exists(), "{} does not exist: build it first", binary.display());
    let output = Command::new("ldd").arg(binary).env("LC_ALL", "C").output().context("run ldd")?;
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if error.contains("not a dynamic executable") || text.contains("statically linked") {
        return Ok(Vec::new());
    }
    ensure!(output.status.success(), "ldd {}: {}", binary.display(), error.trim());
    parse(&text).with_context(|| format!("libraries of {}", binary.display()))
}

/// Parses lines such as `libm.so.6 => /lib/libm.so.6 (0x7f00)` and `/lib64/ld-linux-x86-64.so.2 (0x7f00)`.
fn parse(text: &str) -> Result<Vec<PathBuf>> {
    let mut libraries = Vec::new();
    for line in text.lines().map(str::trim) {
        let target = line.split_once(" => ").map_or(line, |(_, target)| target);
        if target.starts_with("not found") {
            bail!("{line}");
        }
        // The kernel provides linux-vdso.so, which has no path.
        if let Some(path) = target.split(" (").next().filter(|path| path.starts_with('/')) {
            libraries.push(PathBuf::from(path));
        }
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_have_paths_and_missing_ones_are_an_error() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibm.so.6 => /lib/x/libm.so.6 (0x2)\n\t/lib64/ld-linux.so.2 (0x3)\n";
        assert_eq!(parse(text).expect("libraries"), ["/lib/x/libm.so.6", "/lib64/ld-linux.so.2"].map(PathBuf::from));
        let missing = parse("\tlibz.so.1 => not found\n").expect_err("missing").to_string();
        assert_eq!(missing, "libz.so.1 => not found");
    }
}
