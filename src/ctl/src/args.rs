//! The command line as typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  sluicectl validate -f routes.yaml              one file, of one object or many
  sluicectl validate -f manifests/ -f extra.yaml every .yaml, .yml and .json below a directory, and a file
  helm template chart | sluicectl validate -f -  what another tool writes
  kubectl -n istio-system get cm istio -o yaml | sluicectl validate -f -
  sluicectl validate -f mesh.yaml --strict       a mesh config by itself; warnings fail, too
  sluicectl validate -f . -o json | jq '.findings[].field'

Objects of kinds that are not Istio's are skipped, but for the ConfigMap with the mesh config. Nothing is asked of a
cluster, and objects are not compared with each other.

Exit codes: 0 everything would be admitted, 1 something is wrong, 2 wrong usage or a file that cannot be read.";

/// Tools for the Sluice control plane.
#[derive(Debug, Parser)]
#[command(name = "sluicectl", version, max_term_width = 100)]
pub(crate) struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say whether Istio objects and mesh configs would be admitted, and what is wrong with those that would not.
    #[command(after_help = EXAMPLES)]
    Validate(ValidateArgs),
    /// Print the version.
    Version {
        /// How to print it.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
}

/// Flags of `validate`.
#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// File or directory to read; `-` is standard input. May be given several times.
    #[arg(short, long = "filename", value_name = "FILE|DIR|-")]
    pub(crate) filenames: Vec<PathBuf>,
    /// More files and directories.
    #[arg(value_name = "FILE|DIR|-", required_unless_present = "filenames")]
    pub(crate) paths: Vec<PathBuf>,
    /// How to print what is found.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
    /// Take warnings for errors.
    #[arg(long)]
    pub(crate) strict: bool,
}

/// A form of output.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Output {
    /// Lines: `file:line:column: Kind namespace/name: field: message`.
    Text,
    /// One JSON object.
    Json,
}
