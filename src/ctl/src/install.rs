//! The subcommands that install. They are the only ones that need a cluster.

mod check;
mod translate;

use std::io::{self, Write};

use serde_json::{Value, json};
use sluice_install::{
    Action, Capabilities, ChangePlan, Charts, Counts, InstallError, InstallInputs, Installation, Journal, Manifest,
    TargetCluster, execute,
};
use tokio::runtime;

use crate::confirmation::confirmed;
use crate::files;
use crate::install_args::{
    ChangeArgs, ClusterArgs, GenerateArgs, InstallArgs, InstallCommand, ManifestCommand, ManifestOutput, SourceArgs,
    UninstallArgs,
};
use crate::{EXIT_FINDINGS, EXIT_OK, EXIT_UNREADABLE};

/// Where a subcommand writes.
pub(crate) struct Streams<'s> {
    pub(crate) out: &'s mut dyn Write,
    pub(crate) errors: &'s mut dyn Write,
}

/// Why a subcommand ends with another code than 0.
pub(crate) enum Failure {
    Io(io::Error),
    Install(InstallError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<InstallError> for Failure {
    fn from(error: InstallError) -> Self {
        Self::Install(error)
    }
}

type Done = Result<u8, Failure>;

/// Runs a subcommand and returns the exit code.
pub(crate) fn run(command: &InstallCommand, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let mut streams = Streams { out, errors };
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        match command {
            InstallCommand::Install(args) => install(args, false, &mut streams).await,
            InstallCommand::Upgrade(args) => install(args, true, &mut streams).await,
            InstallCommand::Uninstall(args) => uninstall(args, &mut streams).await,
            InstallCommand::Manifest { command: ManifestCommand::Generate(args) } => generate(args, &mut streams),
            InstallCommand::Manifest { command: ManifestCommand::Translate(args) } => {
                translate::run(args, &mut streams)
            }
            InstallCommand::Precheck(args) => check::precheck(args, &mut streams).await,
            InstallCommand::VerifyInstall(args) => check::verify(args, &mut streams).await,
        }
    });
    match done {
        Ok(code) => Ok(code),
        Err(Failure::Io(error)) => Err(error),
        Err(Failure::Install(error)) => {
            writeln!(streams.errors, "sluicectl: {error}")?;
            let is_input = matches!(error, InstallError::Input { .. } | InstallError::Rendering { .. });
            Ok(if is_input { EXIT_UNREADABLE } else { EXIT_FINDINGS })
        }
    }
}

/// What is installed, with its charts.
fn read(args: &SourceArgs, errors: &mut dyn Write) -> Result<(Installation, Charts), Failure> {
    let mut failures = Vec::new();
    let sources: Vec<_> = args.filenames.iter().flat_map(|path| files::read(path, &mut failures)).collect();
    if let Some(failure) = failures.into_iter().next() {
        return Err(InstallError::Input { path: "--filename".to_owned(), reason: failure }.into());
    }
    let inputs = InstallInputs {
        files: sources.into_iter().map(|source| (source.name, source.text)).collect(),
        settings: args.settings.clone(),
        namespace: args.namespace.clone(),
        revision: args.revision.clone(),
    };
    let installation = Installation::read(&inputs)?;
    for note in &installation.notes {
        writeln!(errors, "{note}")?;
    }
    let charts = match &args.manifests {
        Some(directory) => Charts::from_directory(directory)?,
        None => Charts::embedded()?,
    };
    Ok((installation, charts))
}

async fn connect(args: &ClusterArgs) -> Result<TargetCluster, InstallError> {
    TargetCluster::connect(args.kubeconfig.as_deref(), args.context.as_deref()).await
}

/// The objects of an installation for a cluster.
async fn render(
    installation: &Installation,
    charts: &Charts,
    cluster: &TargetCluster,
) -> Result<Vec<Manifest>, InstallError> {
    let capabilities = cluster.capabilities().await?;
    installation.render_for(charts, &capabilities, cluster).await
}

async fn install(args: &InstallArgs, must_exist: bool, streams: &mut Streams<'_>) -> Done {
    let (installation, charts) = read(&args.source, streams.errors)?;
    let cluster = connect(&args.cluster).await?;
    let manifests = render(&installation, &charts, &cluster).await?;
    let plan = ChangePlan::of_installation(&installation, &manifests, &cluster).await?;
    let Installation { revision, namespace, profile, .. } = &installation;
    let exists = plan.changes.iter().any(|change| !matches!(change.action, Action::Create));
    if must_exist && !exists {
        return Err(InstallError::Refused {
            subject: format!("revision {revision} in namespace {namespace}"),
            reason: "there is no installation that could be upgraded; use `sluicectl install`".to_owned(),
        }
        .into());
    }
    let verb = if exists { "change" } else { "install" };
    let title = format!("This will {verb} revision {revision} in namespace {namespace}, with the profile {profile}.");
    if !announce(&plan, &title, &args.change, streams)? {
        return Ok(EXIT_OK);
    }
    let mut journal = Journal::default();
    let result = carry_out(&plan, &cluster, &args.change, &mut journal, streams.errors).await;
    match result {
        Ok(()) => {
            writeln!(streams.errors, "revision {revision} is installed and ready")?;
            Ok(EXIT_OK)
        }
        Err(error) => {
            writeln!(streams.errors, "sluicectl: {error}")?;
            undo(journal, &cluster, streams.errors).await?;
            Ok(EXIT_FINDINGS)
        }
    }
}

/// Carries out a plan until it ends, or until the user interrupts it.
async fn carry_out(
    plan: &ChangePlan,
    cluster: &TargetCluster,
    args: &ChangeArgs,
    journal: &mut Journal,
    errors: &mut dyn Write,
) -> Result<(), InstallError> {
    // Progress that cannot be written must not end the operation half-way.
    let mut report = |line: &str| drop(writeln!(errors, "{line}"));
    tokio::select! {
        result = execute(plan, cluster, args.readiness_timeout, journal, &mut report) => result,
        _ = tokio::signal::ctrl_c() => Err(InstallError::Interrupted),
    }
}

async fn undo(journal: Journal, cluster: &TargetCluster, errors: &mut dyn Write) -> io::Result<()> {
    if journal.is_empty() {
        return writeln!(errors, "nothing was changed");
    }
    writeln!(errors, "undoing the changes")?;
    let undone = {
        let mut report = |line: &str| drop(writeln!(errors, "{line}"));
        journal.undo(cluster, &mut report).await
    };
    if !undone.kept.is_empty() {
        writeln!(errors, "{} CRDs were created and stay", undone.kept.len())?;
    }
    for failure in &undone.failures {
        writeln!(errors, "sluicectl: not undone: {failure}")?;
    }
    let state = if undone.failures.is_empty() { "the cluster is as it was before" } else { "the undo is not complete" };
    writeln!(errors, "{state}: {} objects restored, {} removed", undone.restored, undone.removed)
}

/// Prints what changes, and asks. Returns whether to go on.
fn announce(plan: &ChangePlan, title: &str, args: &ChangeArgs, streams: &mut Streams<'_>) -> Result<bool, Failure> {
    let Counts { created, changed, kept, deleted } = plan.counts();
    let counts = format!("{created} created, {changed} changed, {deleted} deleted, {kept} unchanged");
    if args.dry_run {
        for change in &plan.changes {
            let diff = change
                .diff()
                .map_err(|reason| InstallError::Refused { subject: change.object.key().to_string(), reason })?;
            write!(streams.out, "{diff}")?;
        }
        writeln!(streams.errors, "dry run, nothing is changed: {counts}")?;
        return Ok(false);
    }
    writeln!(streams.errors, "{title}")?;
    for change in plan.changes.iter().filter(|change| !matches!(change.action, Action::Keep)) {
        writeln!(streams.errors, "  {}", change.summary())?;
    }
    writeln!(streams.errors, "{counts}")?;
    if args.skip_confirmation || plan.is_empty() {
        return Ok(true);
    }
    Ok(confirmed("Proceed?", streams.errors)?)
}

async fn uninstall(args: &UninstallArgs, streams: &mut Streams<'_>) -> Done {
    let cluster = connect(&args.cluster).await?;
    let plan = ChangePlan::of_removal(args.revision.as_deref(), &cluster).await?;
    let name = match &args.revision {
        Some(revision) => format!("revision {revision}"),
        None => "all revisions and the base".to_owned(),
    };
    if plan.is_empty() {
        writeln!(streams.errors, "there are no objects of {name}")?;
        return Ok(EXIT_OK);
    }
    if !announce(&plan, &format!("This will remove {name}."), &args.change, streams)? {
        return Ok(EXIT_OK);
    }
    carry_out(&plan, &cluster, &args.change, &mut Journal::default(), streams.errors).await?;
    writeln!(streams.errors, "removed {name}")?;
    Ok(EXIT_OK)
}

fn generate(args: &GenerateArgs, streams: &mut Streams<'_>) -> Done {
    let (installation, charts) = read(&args.source, streams.errors)?;
    let manifests = installation.render(&charts, &Capabilities::of_version(&args.kube_version))?;
    let objects = manifests.iter().flat_map(|manifest| &manifest.objects);
    match args.output {
        ManifestOutput::Yaml => {
            for object in objects {
                let text = object
                    .to_yaml()
                    .map_err(|reason| InstallError::Refused { subject: object.key().to_string(), reason })?;
                write!(streams.out, "---\n{text}")?;
            }
        }
        ManifestOutput::Json => {
            let items: Vec<&Value> = objects.map(sluice_install::KubeObject::json).collect();
            let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
            serde_json::to_writer_pretty(&mut *streams.out, &list).map_err(io::Error::from)?;
            writeln!(streams.out)?;
        }
    }
    Ok(EXIT_OK)
}
