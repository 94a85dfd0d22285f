//! The `ztunnel-config` subcommand: the configuration of a ztunnel, from its admin interface or from a file (I12).

pub(crate) mod args;
mod certificates;
mod connections;
mod dump;
mod log;
mod services;
#[cfg(test)]
mod tests;
mod workloads;

use std::io::{self, Write};

use http::Method;
use jiff::Timestamp;
use serde_json::Value;

use crate::answer_output::{AnswerOutput, fail, print, text};
use crate::columns::{print_columns, table};
use crate::connect::{QueryError, Ztunnels, connect_to_ztunnel};
use crate::proxy_config::read_file;
use args::{ConnectionDirection, ZtunnelArgs, ZtunnelConfigCommand};
use dump::ZtunnelDump;

const EXIT_NOT_FOUND: u8 = 1;
const GAP: usize = 1;
const CERTIFICATE_GAP: usize = 5;

/// What is printed of a kind. Absent conditions select all.
#[derive(Clone, Debug, Default)]
struct Filter {
    /// Name of a workload.
    name: Option<String>,
    namespace: Option<String>,
    address: Option<String>,
    node: Option<String>,
    direction: Option<ConnectionDirection>,
    /// Addresses are printed in place of names.
    raw: bool,
}

/// A kind of configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Workload,
    Service,
    Policy,
    Certificate,
    Connections,
}

/// The kinds of `all` with their titles, in order.
const ALL: [(Kind, &str); 5] = [
    (Kind::Workload, "WORKLOAD INFO"),
    (Kind::Service, "SERVICE INFO"),
    (Kind::Policy, "POLICY INFO"),
    (Kind::Certificate, "SECRET INFO"),
    (Kind::Connections, "CONNECTIONS INFO"),
];

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(command: &ZtunnelConfigCommand, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let none = Filter::default();
    let (args, kind, filter, with_headers) = match command {
        ZtunnelConfigCommand::Workload(args) => {
            let filter = Filter {
                address: args.address.clone(),
                namespace: args.workload_namespace.clone(),
                node: args.workload_node.clone(),
                ..none
            };
            (&args.shared, Some(Kind::Workload), filter, false)
        }
        ZtunnelConfigCommand::Service(args) => {
            let filter = Filter { namespace: args.service_namespace.clone(), ..none };
            (&args.shared, Some(Kind::Service), filter, false)
        }
        ZtunnelConfigCommand::Policy(args) => {
            let filter = Filter { namespace: args.policy_namespace.clone(), ..none };
            (&args.shared, Some(Kind::Policy), filter, false)
        }
        ZtunnelConfigCommand::Certificate(args) => (args, Some(Kind::Certificate), none, false),
        ZtunnelConfigCommand::Connections(args) => {
            let (direction, raw) = (args.direction, args.raw);
            let filter = Filter { namespace: args.workload_namespace.clone(), direction, raw, ..none };
            (&args.shared, Some(Kind::Connections), filter, false)
        }
        ZtunnelConfigCommand::All(args) => (&args.shared, None, none, args.with_headers),
        ZtunnelConfigCommand::Log(args) => return log::run(args, out, errors),
    };
    // The certificates and connections of one ztunnel are not those of another one.
    let which = match kind {
        Some(Kind::Certificate | Kind::Connections) => Ztunnels::TheOnly,
        _ => Ztunnels::First,
    };
    match read(args, which) {
        Ok((dump, workload)) => {
            let filter = match workload.filter(|_| matches!(kind, Some(Kind::Workload | Kind::Connections))) {
                Some((name, namespace)) => Filter { name: Some(name), namespace: Some(namespace), ..filter },
                None => filter,
            };
            match kind {
                Some(kind) => show(&dump, kind, &filter, args.output, out),
                None => all(&dump, with_headers, args.output, out),
            }
            .map(|()| 0)
        }
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

/// The dump, and the name and namespace of the pod that was named in place of its ztunnel.
fn read(args: &ZtunnelArgs, which: Ztunnels) -> Result<(ZtunnelDump, Option<(String, String)>), QueryError> {
    if let Some(path) = &args.file {
        let failed = |error: String| QueryError::Flags(format!("--file {}: {error}", path.display()));
        let text = read_file(path).map_err(|error| failed(error.to_string()))?;
        return Ok((ZtunnelDump::parse(&text).map_err(failed)?, None));
    }
    let found = connect_to_ztunnel(&args.source.target(), which)?;
    let text = found.ztunnel.request(Method::GET, "/config_dump", &[], String::new())?;
    let dump = ZtunnelDump::parse(&text);
    let dump = dump.map_err(|error| QueryError::Response(format!("{}: {error}", found.ztunnel.name())))?;
    Ok((dump, found.workload))
}

fn show(dump: &ZtunnelDump, kind: Kind, filter: &Filter, output: AnswerOutput, out: &mut dyn Write) -> io::Result<()> {
    if output != AnswerOutput::Table {
        let selected: Value = selected(dump, kind, filter).into_iter().cloned().collect();
        return print(output, &selected, out, |_, _| Ok(()));
    }
    let (titles, rows, gap) = match kind {
        Kind::Workload => (&workloads::TITLES[..], workloads::rows(dump, filter), GAP),
        Kind::Service => (&services::TITLES[..], services::rows(dump, filter), GAP),
        Kind::Policy => (&POLICY_TITLES[..], policies(dump, filter), GAP),
        Kind::Certificate => (&certificates::TITLES[..], certificates::rows(dump, Timestamp::now()), CERTIFICATE_GAP),
        Kind::Connections => (&connections::TITLES[..], connections::rows(dump, filter), GAP),
    };
    print_columns(&table(titles, rows), gap, out)
}

/// The records of a kind that the filter selects.
fn selected<'d>(dump: &'d ZtunnelDump, kind: Kind, filter: &Filter) -> Vec<&'d Value> {
    match kind {
        Kind::Workload => workloads::select(dump, filter),
        Kind::Service => services::select(dump, filter),
        Kind::Policy => select_policies(dump, filter),
        Kind::Certificate => dump.certificates.iter().collect(),
        Kind::Connections => connections::select(dump, filter),
    }
}

/// Prints all kinds.
fn all(dump: &ZtunnelDump, with_headers: bool, output: AnswerOutput, out: &mut dyn Write) -> io::Result<()> {
    if output != AnswerOutput::Table {
        return print(output, &dump.whole, out, |_, _| Ok(()));
    }
    for (kind, title) in ALL {
        writeln!(out)?;
        if with_headers {
            writeln!(out, "------ {title} ------\n")?;
        }
        show(dump, kind, &Filter::default(), output, out)?;
    }
    Ok(())
}

const POLICY_TITLES: [&str; 4] = ["NAMESPACE", "POLICY NAME", "ACTION", "SCOPE"];

fn select_policies<'d>(dump: &'d ZtunnelDump, filter: &Filter) -> Vec<&'d Value> {
    let mut policies: Vec<&Value> = dump.policies.iter().filter(|it| filter.is_in_namespace(it)).collect();
    policies.sort_by_key(|it| (text(it, "namespace"), text(it, "name")));
    policies
}

fn policies(dump: &ZtunnelDump, filter: &Filter) -> Vec<Vec<String>> {
    let fields = ["namespace", "name", "action", "scope"];
    let row = |it: &Value| fields.map(|field| text(it, field).to_owned()).to_vec();
    select_policies(dump, filter).into_iter().map(row).collect()
}

impl Filter {
    /// Whether a record with a field `namespace` is selected by its namespace.
    fn is_in_namespace(&self, record: &Value) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| namespace.eq_ignore_ascii_case(text(record, "namespace")))
    }

    /// Whether a record with a field `name` is selected by its name.
    fn is_named(&self, record: &Value) -> bool {
        self.name.as_ref().is_none_or(|name| name.eq_ignore_ascii_case(text(record, "name")))
    }
}
