//! Compiles the declarations of this crate and Envoy's into one descriptor set, and generates Rust for those of this
//! crate.
//!
//! Envoy's `.proto` files are not copied. They are read from the package directory of `envoy-types`, so that the
//! descriptors have the same version as its Rust types.

#[path = "build/map_fields.rs"]
mod map_fields;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorProto};
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};

/// Directories in the `proto` directory of `envoy-types` with files by import name.
const ENVOY_ROOTS: [&str; 8] = [
    "data-plane-api",
    "xds",
    "protoc-gen-validate",
    "googleapis",
    "opentelemetry-proto",
    "client_model",
    "cel-spec/proto",
    "ratelimit",
];

/// All files by import name, parsed, with every relative type name replaced by the full name.
///
/// protox resolves relative names against its whole pool, `protoc` only against the imports of a file. With the many
/// `common` and `config` packages of Envoy the results differ. Full names are unambiguous.
struct ParsedFiles(BTreeMap<String, FileDescriptorProto>);

impl ParsedFiles {
    fn read(roots: &[PathBuf]) -> Result<Self, Box<dyn Error>> {
        let mut files = BTreeMap::new();
        for root in roots {
            for path in proto_files(root)? {
                let name = path.to_str().ok_or("a .proto path is not UTF-8")?.to_owned();
                let file = File::open(&name, &root.join(&path))?;
                files.insert(name, file.file_descriptor_proto().clone());
            }
        }
        let mut types = BTreeSet::new();
        for file in files.values() {
            for message in &file.message_type {
                collect_types(&mut types, file.package(), message);
            }
            types.extend(file.enum_type.iter().map(|e| format!("{}.{}", file.package(), e.name())));
        }
        for file in files.values_mut() {
            file.source_code_info = None;
            let package = file.package().to_owned();
            for message in &mut file.message_type {
                resolve_types(&types, &package, message);
            }
        }
        Ok(Self(files))
    }
}

impl FileResolver for ParsedFiles {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match self.0.get(name) {
            Some(file) => Ok(File::from_file_descriptor_proto(file.clone())),
            None => Err(protox::Error::file_not_found(name)),
        }
    }
}

fn collect_types(types: &mut BTreeSet<String>, scope: &str, message: &DescriptorProto) {
    let name = format!("{scope}.{}", message.name());
    types.extend(message.enum_type.iter().map(|e| format!("{name}.{}", e.name())));
    for nested in &message.nested_type {
        collect_types(types, &name, nested);
    }
    types.insert(name);
}

fn resolve_types(types: &BTreeSet<String>, scope: &str, message: &mut DescriptorProto) {
    let inside = format!("{scope}.{}", message.name());
    for field in &mut message.field {
        let Some(name) = field.type_name.as_deref().filter(|name| !name.starts_with('.')) else { continue };
        let mut scope = Some(inside.as_str());
        while let Some(outer) = scope {
            let full = format!("{outer}.{name}");
            if types.contains(&full) {
                field.type_name = Some(format!(".{full}"));
                break;
            }
            scope = outer.rsplit_once('.').map(|(parent, _)| parent);
        }
    }
    for nested in &mut message.nested_type {
        resolve_types(types, &inside, nested);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=Cargo.toml");
    println!("cargo::rerun-if-changed=decl");
    println!("cargo::rerun-if-env-changed=ENVOY_TYPES_DIR");

    let out = PathBuf::from(env::var("OUT_DIR")?);
    let ours = PathBuf::from("decl");
    let envoy = envoy_types_dir()?.join("proto");
    let roots: Vec<PathBuf> = ENVOY_ROOTS.iter().map(|root| envoy.join(root)).collect();

    let parsed = ParsedFiles::read(&std::iter::once(ours.clone()).chain(roots).collect::<Vec<_>>())?;
    let files: Vec<String> = parsed.0.keys().cloned().collect();
    let mut resolver = ChainFileResolver::new();
    resolver.add(parsed);
    resolver.add(GoogleFileResolver::new());
    let mut compiler = protox::Compiler::with_file_resolver(resolver);
    compiler.include_source_info(false).include_imports(true).open_files(&files)?;
    let all = compiler.file_descriptor_set();
    fs::write(out.join("descriptors.bin"), all.encode_to_vec())?;
    fs::write(out.join("map_fields.rs"), map_fields::write(&all))?;

    let mut config = prost_build::Config::new();
    config
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com")
        .btree_map(["."])
        .compile_well_known_types();
    // Files that ours import must be in the set, but their Rust types exist already.
    let names = proto_files(&ours)?;
    let mut required: BTreeSet<String> = names.iter().filter_map(|name| Some(name.to_str()?.to_owned())).collect();
    let mut count = 0;
    while count < required.len() {
        count = required.len();
        for file in all.file.iter().filter(|file| required.contains(file.name())).collect::<Vec<_>>() {
            required.extend(file.dependency.iter().cloned());
        }
    }
    let mut described = all;
    described.file.retain(|file| required.contains(file.name()));
    for file in described.file.iter().filter(|file| !names.iter().any(|name| name.as_os_str() == file.name())) {
        let module = file.package().replace('.', "::").replace("::type::", "::r#type::");
        let messages = file.message_type.iter().map(|message| message.name());
        for name in messages.chain(file.enum_type.iter().map(|e| e.name())) {
            let path = format!("::envoy_types::pb::{module}::{name}");
            config.extern_path(format!(".{}.{name}", file.package()), path);
        }
    }
    let nested = "::envoy_types::pb::xds::r#type::matcher::v3::matcher::OnMatch";
    config.extern_path(".xds.type.matcher.v3.Matcher.OnMatch", nested);
    config.include_file("packages.rs").compile_fds(described)?;
    Ok(())
}

/// Every `.proto` file below `root` by import name, sorted, so that the descriptor set is the same on every machine.
fn proto_files(root: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut found = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(dir) = open.pop() {
        let entries = fs::read_dir(&dir).map_err(|e| format!("read {}: {e}", dir.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|x| x == "proto") {
                found.push(path.strip_prefix(root)?.to_path_buf());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The directory cargo unpacked (or vendored) `envoy-types` into.
fn envoy_types_dir() -> Result<PathBuf, Box<dyn Error>> {
    if let Some(dir) = env::var_os("ENVOY_TYPES_DIR") {
        return Ok(dir.into());
    }
    let mut tried = String::new();
    // Cargo has downloaded the packages of this target only, so it must not resolve those of others.
    for offline in [true, false] {
        let mut cargo = Command::new(env::var_os("CARGO").ok_or("CARGO is not set")?);
        cargo.args(["metadata", "--format-version=1", "--filter-platform", &env::var("TARGET")?]);
        if offline {
            cargo.arg("--offline");
        }
        let output = cargo.output()?;
        if output.status.success() {
            let manifest = manifest_of(&String::from_utf8(output.stdout)?, "envoy-types")
                .ok_or("cargo metadata does not list envoy-types")?;
            return Ok(manifest.parent().ok_or("envoy-types has no directory")?.to_path_buf());
        }
        tried.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    Err(format!("cannot find the envoy-types package (set ENVOY_TYPES_DIR to it): {tried}").into())
}

/// The manifest path of a package, from the text of `cargo metadata`.
///
/// The path of the package is the only string that ends in `/NAME-VERSION/Cargo.toml` (registry) or `/NAME/Cargo.toml`
/// (vendored), so no JSON parser is needed.
fn manifest_of(metadata: &str, package: &str) -> Option<PathBuf> {
    metadata
        .split("\"manifest_path\":\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .map(|path| PathBuf::from(path.replace("\\\\", "\\")))
        .find(|path| {
            let dir = path.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default();
            dir.strip_prefix(package).is_some_and(|rest| {
                rest.is_empty() || rest.strip_prefix('-').is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit()))
            })
        })
}
