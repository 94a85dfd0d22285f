//! The `bug-report` subcommand (I08): an archive of what helps to explain the behaviour of a mesh.

mod archive;
mod cluster_objects;
mod container_log;
mod control_plane;
mod deadline;
mod pod_filter;
mod proxies;
mod recording;
mod redaction;

use std::io::{self, Write};

use clap::Parser as _;
use jiff::Timestamp;

use crate::analyze;
use crate::answer_output::{AnswerOutput, fail};
use crate::args::{Command, CommandLine};
use crate::bug_report_args::BugReportArgs;
use crate::connect::kubernetes::{KubeconfigCluster, current_thread};
use crate::connect::{EXIT_INVALID, PodConnector, QueryError, ServerArgs, connect};
use crate::operator_args::VersionArgs;
use crate::version;
use archive::Archive;
use container_log::LogRange;
use deadline::Deadline;
use pod_filter::PodSelection;
use proxies::SelectedContainer;
use tokio::runtime::Runtime;

/// Name of the archive, as istioctl names it.
const ARCHIVE: &str = "bug-report.tar.gz";

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &BugReportArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let selection = match PodSelection::new(&args.include, &args.exclude) {
        Ok(selection) => selection,
        Err(reason) => return fail(&QueryError::Flags(reason), EXIT_INVALID, errors),
    };
    let connected = current_thread().and_then(|runtime| {
        let cluster = runtime.block_on(KubeconfigCluster::of(&args.cluster.target))?;
        let pods = runtime.block_on(analyze::live::list(&cluster.client(), "api/v1", "pods"));
        let pods = pods.map_err(QueryError::Cluster)?;
        Ok((runtime, cluster, pods))
    });
    let (runtime, cluster, pods) = match connected {
        Ok(connected) => connected,
        Err(error) => return fail(&error, EXIT_INVALID, errors),
    };
    let containers = proxies::select(&pods, &selection, &args.cluster.istio_namespace);
    if args.dry_run {
        containers.iter().try_for_each(|container| writeln!(out, "{}", container.label()))?;
        return Ok(0);
    }
    let now = Timestamp::now();
    let path = args.output_dir.join(ARCHIVE);
    let archive = Archive::create(&path, args.max_size.saturating_mul(1 << 20), now);
    let collected = archive.and_then(|archive| {
        let collection = Collection { args, selection: &selection, containers: &containers, now };
        collection.collect(&runtime, &cluster, archive, errors)
    });
    match collected {
        Ok((files, notes)) => {
            let missing =
                if notes == 0 { String::new() } else { format!("; summary.txt names {notes} that are missing") };
            writeln!(out, "{}: {files} files{missing}", path.display())?;
            Ok(0)
        }
        Err(error) => {
            writeln!(errors, "sluicectl: {}: {error}", path.display())?;
            Ok(EXIT_INVALID)
        }
    }
}

/// What is collected.
struct Collection<'c> {
    args: &'c BugReportArgs,
    selection: &'c PodSelection,
    containers: &'c [SelectedContainer<'c>],
    now: Timestamp,
}

impl Collection<'_> {
    /// Adds everything, and returns the numbers of files and of missing ones. An error is one of the archive.
    fn collect(
        &self,
        runtime: &Runtime,
        cluster: &KubeconfigCluster,
        mut archive: Archive,
        errors: &mut dyn Write,
    ) -> io::Result<(usize, usize)> {
        let args = self.args;
        let deadline = Deadline::after(args.timeout);
        let istio_namespace = &args.cluster.istio_namespace;
        // Progress that cannot be written must not end the collection.
        let mut report = |line: &str| drop(writeln!(errors, "{line}"));
        if !args.skip_cluster_dump {
            report("reading the objects of the cluster");
            let client = cluster.client();
            runtime.block_on(cluster_objects::add_all(
                &client,
                self.selection,
                istio_namespace,
                &deadline,
                &mut archive,
            ))?;
        }
        report("reading versions and debug pages of the control plane");
        self.add_control_plane(&deadline, &mut archive)?;
        report(&format!("reading logs of {} containers", self.containers.len()));
        let range = LogRange::new(args, self.now);
        proxies::add_logs(self.containers, (runtime, &cluster.client()), &range, &deadline, &mut archive)?;
        if !args.skip_proxy_debug {
            report("reading dumps of proxies");
            match PodConnector::new(&args.cluster) {
                Ok(connector) => {
                    let port = args.proxy_admin_port;
                    proxies::add_dumps(self.containers, &connector, port, &deadline, &mut archive)?;
                }
                Err(error) => archive.note("dumps of proxies", &error.to_string()),
            }
        }
        if !args.skip_analyze && !deadline.is_over() {
            report("analyzing the objects");
            add_analysis(args, &mut archive)?;
        }
        let counts = archive.counts();
        archive.finish(&self.description())?;
        Ok(counts)
    }

    fn add_control_plane(&self, deadline: &Deadline, archive: &mut Archive) -> io::Result<()> {
        let args = self.args;
        let server_args = ServerArgs { cluster: args.cluster.clone(), ..ServerArgs::default() };
        let (mut versions, mut failures) = (Vec::new(), Vec::new());
        let version = VersionArgs { remote: true, output: AnswerOutput::Json, server: server_args.clone() };
        version::run(&version, &mut versions, &mut failures)?;
        archive.add_answer("versions.json", &versions)?;
        match connect(&server_args) {
            Ok(server) => {
                let settings = (args.cluster.istio_namespace.as_str(), args.recording_duration);
                control_plane::add_all(&server, settings, deadline, archive)
            }
            Err(error) => {
                archive.note("istio", &error.to_string());
                Ok(())
            }
        }
    }

    fn description(&self) -> String {
        let filters = |filters: &[String]| if filters.is_empty() { "none".to_owned() } else { filters.join(" ") };
        let (include, exclude) = (filters(&self.args.include), filters(&self.args.exclude));
        let (time, version) = (self.now, env!("CARGO_PKG_VERSION"));
        format!(
            "Report of sluicectl {version}, {time}.\nInclude: {include}. Exclude: {exclude}.\n\
             Data of Secrets is not read. Private keys, passwords and tokens are replaced by [redacted].\n\
             Recordings are without EnvoyFilters and settings of extensions.\n"
        )
    }
}

/// Adds the messages of `analyze` about the cluster.
fn add_analysis(args: &BugReportArgs, archive: &mut Archive) -> io::Result<()> {
    let mut line = vec!["sluicectl".to_owned(), "analyze".to_owned(), "-A".to_owned(), "--color=false".to_owned()];
    line.push(format!("--istio-namespace={}", args.cluster.istio_namespace));
    if let Some(kubeconfig) = &args.cluster.target.kubeconfig {
        line.push(format!("--kubeconfig={}", kubeconfig.display()));
    }
    if let Some(context) = &args.cluster.target.context {
        line.push(format!("--context={context}"));
    }
    let (mut messages, mut failures) = (Vec::new(), Vec::new());
    match CommandLine::try_parse_from(line).map(|line| line.command) {
        Ok(Command::Analyze(args)) => drop(analyze::run(&args, &mut messages, &mut failures)?),
        _ => archive.note("analyze", "the command line of analyze is not understood"),
    }
    archive.add_text("analyze/messages.txt", &String::from_utf8_lossy(&messages))?;
    if !failures.is_empty() {
        archive.add_text("analyze/errors.txt", &String::from_utf8_lossy(&failures))?;
    }
    Ok(())
}
