//! Settings of the linker.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let of_target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if of_target("OS") == "linux" && of_target("ENV") == "gnu" {
        // The table of relocations is a megabyte, which a start reads into memory, and a few kilobytes when packed. glibc reads
        // that form since 2.36; older linkers ignore the option with a warning.
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
