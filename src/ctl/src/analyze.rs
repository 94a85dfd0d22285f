//! The `analyze` subcommand (I06).

pub(crate) mod live;
mod output;

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::Value;
use sluice_analyze::{
    ANALYZERS, AnalyzedObject, Analyzer, MeshObjects, Message, OPTIONAL_ANALYZERS, Origin, Settings, analyze,
    default_resources,
};
use sluice_parse::list_items;
use sluice_parse::yaml::{Limits, parse_documents, parse_value};

use crate::analyze_args::{AnalyzeArgs, MessageFormat};
use crate::{EXIT_OK, EXIT_UNREADABLE, files};

/// A document in a file is invalid, as in `istioctl`.
const EXIT_INVALID_DOCUMENT: u8 = 65;
/// Messages at or above the threshold, as in `istioctl`.
const EXIT_MESSAGES: u8 = 79;

/// Objects with the texts of their files.
#[derive(Default)]
struct Input {
    resources: Vec<AnalyzedObject>,
    /// Whether messages name the cluster of their object.
    has_remote_clusters: bool,
    texts: HashMap<String, String>,
    invalid_documents: usize,
}

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &AnalyzeArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    if args.list_analyzers {
        return output::analyzers(out).map(|()| EXIT_OK);
    }
    for suppression in args.suppress.iter().filter(|suppression| !suppression.has_known_code()) {
        writeln!(errors, "sluicectl: --suppress: code {} is unknown and has no effect", suppression.code)?;
    }
    match analyze_input(args, out, errors)? {
        Ok(code) => Ok(code),
        Err(reason) => {
            writeln!(errors, "sluicectl: {reason}")?;
            Ok(EXIT_UNREADABLE)
        }
    }
}

fn analyze_input(args: &AnalyzeArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<Result<u8, String>> {
    let prepared = selected_analyzers(args).and_then(|analyzers| Ok((analyzers, settings(args)?)));
    let (mut analyzers, settings) = match prepared {
        Ok(prepared) => prepared,
        Err(reason) => return Ok(Err(reason)),
    };
    let mut input = Input::default();
    let mut namespace = args.namespace.clone().unwrap_or_else(|| "default".to_owned());
    if args.use_kube {
        match live::read(args) {
            Ok(cluster) => {
                for reason in &cluster.unreadable {
                    writeln!(errors, "sluicectl: {reason}; it is not analyzed")?;
                }
                namespace = args.namespace.clone().unwrap_or(cluster.default_namespace);
                let is_namespace =
                    |object: &AnalyzedObject| object.kind().name == "Namespace" && object.name() == namespace;
                if !args.all_namespaces && !cluster.resources.iter().any(is_namespace) {
                    writeln!(errors, "sluicectl: namespace {namespace:?} not found")?;
                    return Ok(Ok(EXIT_OK));
                }
                input.resources = cluster.resources;
                input.has_remote_clusters = cluster.has_remote_clusters;
            }
            Err(reason) => return Ok(Err(reason)),
        }
    }
    let unreadable = read_files(args, &namespace, &mut input, errors)?;
    if !args.use_kube {
        let all = analyzers.len();
        analyzers.retain(|analyzer| analyzer.is_complete_with(&input.resources));
        if analyzers.len() < all && args.output == MessageFormat::Log {
            let skipped = all - analyzers.len();
            writeln!(
                errors,
                "sluicectl: {skipped} analyzers are left out: the files have no objects of a kind that they look up"
            )?;
        }
        if settings.mesh_config.as_ref().is_none_or(has_ingress) {
            // Objects in files replace them.
            let own = std::mem::replace(&mut input.resources, default_resources(&args.istio_namespace));
            input.resources.extend(own);
        }
    }
    let mesh = MeshObjects::new(&input.resources, settings);
    let mut messages = analyze(&mesh, &analyzers);
    messages.retain(|message| {
        (args.all_namespaces || message.concerns_namespace(&namespace)) && !message.is_suppressed(&args.suppress)
    });
    let fails = messages.iter().any(|message| message.message_type.level >= args.failure_threshold);
    messages.retain(|message| message.message_type.level >= args.output_threshold);
    print(args, &messages, &input, out, errors)?;
    Ok(Ok(if unreadable {
        EXIT_UNREADABLE
    } else if args.output != MessageFormat::Log {
        EXIT_OK
    } else if fails {
        EXIT_MESSAGES
    } else if input.invalid_documents > 0 && !args.ignore_unknown {
        EXIT_INVALID_DOCUMENT
    } else {
        EXIT_OK
    }))
}

fn print(
    args: &AnalyzeArgs,
    messages: &[Message<'_>],
    input: &Input,
    out: &mut dyn Write,
    errors: &mut dyn Write,
) -> io::Result<()> {
    let context = output::OutputContext { texts: &input.texts, names_clusters: input.has_remote_clusters };
    match args.output {
        MessageFormat::Log => output::log(messages, context, args.color.unwrap_or(true), out)?,
        MessageFormat::Json => output::json(messages, context, out)?,
        MessageFormat::Yaml => output::yaml(messages, context, out)?,
    }
    if messages.is_empty() && args.output == MessageFormat::Log {
        writeln!(errors, "No messages about {} objects.", input.resources.len())?;
    }
    Ok(())
}

/// Whether the mesh config has an ingress controller, whose gateway is then assumed.
fn has_ingress(mesh_config: &Value) -> bool {
    mesh_config.get("ingressControllerMode").and_then(Value::as_str) != Some("OFF")
}

fn selected_analyzers(args: &AnalyzeArgs) -> Result<Vec<&'static Analyzer>, String> {
    let find = |name: &String| {
        let found = ANALYZERS.iter().chain(OPTIONAL_ANALYZERS).find(|analyzer| analyzer.name == name);
        found.ok_or_else(|| format!("--analyzer: {name:?} is unknown; `sluicectl analyze -L` lists them"))
    };
    if args.analyzers.is_empty() { Ok(ANALYZERS.iter().collect()) } else { args.analyzers.iter().map(find).collect() }
}

fn settings(args: &AnalyzeArgs) -> Result<Settings, String> {
    let mesh_config = match &args.mesh_config_file {
        None => None,
        Some(path) => {
            let name = path.display();
            let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: cannot read: {error}"))?;
            let parsed = parse_value(&text, &Limits::default());
            Some(parsed.map_err(|error| format!("{name}:{}: {}", error.line, error.reason))?)
        }
    };
    Ok(Settings {
        istio_namespace: args.istio_namespace.clone(),
        revision: args.revision.clone(),
        mesh_config,
        now_unix_seconds: Some(jiff::Timestamp::now().as_second()),
    })
}

/// Adds the objects in files, and returns whether a file cannot be read.
fn read_files(args: &AnalyzeArgs, namespace: &str, input: &mut Input, errors: &mut dyn Write) -> io::Result<bool> {
    let mut failures = Vec::new();
    for source in args.paths.iter().flat_map(|path| files::read(path, &mut failures)).collect::<Vec<_>>() {
        for document in parse_documents(&source.text, &Limits::default()) {
            let reason = match document {
                Ok(document) => list_items(document.value)
                    .into_iter()
                    .try_for_each(|object| add(object, document.line, &source.name, namespace, input))
                    .map_err(|reason| format!("{}:{}: {reason}", source.name, document.line)),
                Err(error) => Err(format!("{}:{}: {}", source.name, error.line, error.reason)),
            };
            if let Err(reason) = reason {
                input.invalid_documents += 1;
                if !args.ignore_unknown {
                    writeln!(errors, "sluicectl: {reason}")?;
                }
            }
        }
        input.texts.insert(source.name, source.text);
    }
    for failure in &failures {
        writeln!(errors, "sluicectl: {failure}")?;
    }
    Ok(!failures.is_empty())
}

/// Adds an object.
fn add(value: Value, line: usize, file: &str, namespace: &str, input: &mut Input) -> Result<(), &'static str> {
    let has = |field: &str| value.pointer(field).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    if !has("/apiVersion") || !has("/kind") {
        return Err("apiVersion and kind are required and must be strings");
    }
    let origin = Origin::File { name: file.to_owned(), line };
    input.resources.push(AnalyzedObject::new(value, origin, namespace));
    Ok(())
}
