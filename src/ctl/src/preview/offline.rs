//! `preview` offline: the configuration that a proxy would receive for the objects in files.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Map, Value};
use sluice_engine::{Engine, EngineOptions, Origin};
use sluice_graph::{GraphOptions, build};
use sluice_model::ProxyKey;

use super::objects::PreviewObjects;
use super::proxy;
use super::served::{self, ResourceSet};
use crate::answer_output::print;
use crate::preview_args::{PreviewArgs, PreviewResourceType};
use crate::{EXIT_FINDINGS, EXIT_OK, EXIT_UNREADABLE};

impl PreviewResourceType {
    const ALL: [Self; 6] = [Self::Cds, Self::Eds, Self::Lds, Self::Rds, Self::Ecds, Self::Nds];

    const fn label(self) -> &'static str {
        match self {
            Self::Cds => "clusters",
            Self::Eds => "endpoints",
            Self::Lds => "listeners",
            Self::Rds => "routes",
            Self::Ecds => "extension configs",
            Self::Nds => "name tables",
        }
    }
}

/// Prints the configuration and returns the exit code.
pub(super) fn run(args: &PreviewArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let mut failures = Vec::new();
    let objects = PreviewObjects::read(&args.filenames, &mut failures);
    for failure in &failures {
        writeln!(errors, "sluicectl: {failure}")?;
    }
    if !failures.is_empty() {
        return Ok(EXIT_UNREADABLE);
    }
    let proxy = match proxy::describe(args, &objects) {
        Ok(proxy) => proxy,
        Err(error) => {
            writeln!(errors, "sluicectl: {error}")?;
            return Ok(EXIT_UNREADABLE);
        }
    };
    for note in objects.notes() {
        writeln!(errors, "sluicectl: {note}")?;
    }

    let options = GraphOptions::default();
    let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &options));
    let key = ProxyKey(proxy.id.clone());
    engine.transaction(|tx| {
        for parsed in objects.parsed {
            handles.inputs.apply(tx, parsed, Origin::default());
        }
        tx.set(&handles.inputs.proxies, key.clone(), proxy);
        handles.inputs.mark_all_synced(tx);
    });
    engine.flush();
    let Some(scope) = served::scope_of(&engine.snapshot(), &handles, &key) else {
        writeln!(errors, "sluicectl: the proxy would receive no configuration")?;
        return Ok(EXIT_FINDINGS);
    };

    let mut previewed = BTreeMap::new();
    for kind in PreviewResourceType::ALL {
        if args.resource_types.is_empty() || args.resource_types.contains(&kind) {
            let mut resources = served::resources(&scope, kind.resource_type());
            resources.retain(|name, _| args.name.as_ref().is_none_or(|only| only == name.as_str()));
            previewed.insert(kind.label(), (kind, resources));
        }
    }
    let is_empty = previewed.values().all(|(_, resources)| resources.is_empty());
    print(args.output, &document(&previewed), out, |_, out| print_names(&previewed, out))?;
    if is_empty {
        writeln!(errors, "sluicectl: the proxy would receive no such resource")?;
    }
    Ok(if is_empty { EXIT_FINDINGS } else { EXIT_OK })
}

type PreviewedResources = BTreeMap<&'static str, (PreviewResourceType, ResourceSet)>;

fn print_names(previewed: &PreviewedResources, out: &mut dyn Write) -> io::Result<()> {
    for kind in PreviewResourceType::ALL {
        let Some((_, resources)) = previewed.get(kind.label()) else { continue };
        writeln!(out, "{}: {}", kind.label(), resources.len())?;
        for (name, bytes) in resources {
            // The only name table of a proxy has no name.
            let name = if name.is_empty() { "(unnamed)" } else { name.as_str() };
            writeln!(out, "  {name}  {} bytes", bytes.len())?;
        }
    }
    Ok(())
}

/// The resources by type.
fn document(previewed: &PreviewedResources) -> Value {
    let mut document = Map::new();
    for (label, (kind, resources)) in previewed {
        let type_url = kind.resource_type().type_url();
        let resources = resources.values().map(|bytes| sluice_proto::json::encode_any(type_url, bytes));
        document.insert((*label).to_owned(), Value::Array(resources.collect()));
    }
    Value::Object(document)
}
