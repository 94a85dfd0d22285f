//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::change::Kind;
use crate::shape::Shape;

/// Simulates the proxies of a mesh against an ADS server and measures how changes reach them.
///
/// Each proxy has a connection and a stream of its own, subscribes and acknowledges as Envoy does, and names its node
/// as istio-proxy does. Objects are YAML files in a directory that the server watches.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 120)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure: start a server (or use a running one), connect proxies, make changes, storm.
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArguments>),
    /// Write the objects of a shape into a directory, and nothing else.
    Generate {
        #[command(flatten)]
        shape: ShapeArguments,
        /// Directory to write to; made if it does not exist.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Draw results as one HTML page.
    Report {
        /// Results of `run`, as JSON.
        #[arg(required = true, value_name = "RESULT.json")]
        results: Vec<PathBuf>,
        /// Page to write.
        #[arg(long, value_name = "FILE", default_value = "report.html")]
        out: PathBuf,
    },
    /// Compare two results of one shape: ratios of latency, CPU, bytes, memory. Exit code 1 when one is over the limit.
    Compare {
        /// The result to compare with.
        before: PathBuf,
        /// The result to judge.
        after: PathBuf,
        /// Largest ratio after : before that passes.
        #[arg(long, default_value_t = 1.5)]
        limit: f64,
    },
}

const RUN_EXAMPLES: &str = "Examples:
  sluice-bench run --sluiced target/release/sluiced --services 1000 --proxies 100
  sluice-bench run --sluiced target/release/sluiced --services 10000 --endpoints 2 --proxies 100 --changes vs,dr --json r.json
  sluice-bench run --server 127.0.0.1:15010 --pid 4711 --config-dir /tmp/mesh --services 200 --proxies 50";

/// What the mesh is like.
#[derive(Args, Clone, Debug)]
pub(crate) struct ShapeArguments {
    /// Services; every tenth is TCP, the rest HTTP on four ports.
    #[arg(long, default_value_t = 1000)]
    pub(crate) services: usize,
    /// Namespaces they are spread over.
    #[arg(long, default_value_t = 20)]
    pub(crate) namespaces: usize,
    /// Endpoints a service, each with its Pod.
    #[arg(long, default_value_t = 5)]
    pub(crate) endpoints: usize,
    /// ServiceEntries with a WorkloadEntry each, beside the services.
    #[arg(long, default_value_t = 0)]
    pub(crate) service_entries: usize,
}

impl ShapeArguments {
    pub(crate) fn shape(&self) -> Result<Shape> {
        ensure!(self.namespaces > 0, "--namespaces has to be at least 1");
        ensure!(self.services >= self.namespaces, "--services has to be at least --namespaces");
        Ok(Shape {
            services: self.services,
            namespaces: self.namespaces,
            endpoints: self.endpoints,
            service_entries: self.service_entries,
        })
    }
}

/// Which protocol the proxies speak.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Protocol {
    /// Incremental, as istio-proxy.
    Delta,
    /// State of the world.
    Sotw,
}

/// Storms to make beside single changes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Storm {
    /// All proxies lose their streams and come back at once with what they hold.
    Reconnect,
    /// The server restarts and all come back with what they hold; only with --sluiced.
    Restart,
    /// One client in ten reads slowly, one in a hundred not at all, while changes go to all.
    Slow,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) shape: ShapeArguments,
    /// Connected proxies: sidecars of the first endpoints of each service.
    #[arg(long, default_value_t = 100)]
    pub(crate) proxies: usize,
    /// Protocol of the proxies.
    #[arg(long, value_enum, default_value_t = Protocol::Delta)]
    pub(crate) protocol: Protocol,
    /// Binary to start as the server, on free ports of the loopback.
    #[arg(long, value_name = "FILE", required_unless_present = "server", conflicts_with = "server")]
    pub(crate) sluiced: Option<PathBuf>,
    /// Plaintext ADS port of a running server that watches --config-dir.
    #[arg(long, value_name = "ADDRESS", requires = "config_dir")]
    pub(crate) server: Option<SocketAddr>,
    /// Process of the running server, for its CPU and memory.
    #[arg(long)]
    pub(crate) pid: Option<u32>,
    /// Directory the objects are written to; a temporary one if not given.
    #[arg(long, value_name = "DIR")]
    pub(crate) config_dir: Option<PathBuf>,
    /// Change kinds to make, comma separated; all if not given, `none` for none.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    pub(crate) changes: Vec<Kind>,
    /// Changes of each kind; one more before them is not counted.
    #[arg(long, default_value_t = 5)]
    pub(crate) repeat: usize,
    /// Storms to make after the changes, comma separated.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "STORM")]
    pub(crate) storms: Vec<Storm>,
    /// How long a change may take to reach the last proxy, in seconds.
    #[arg(long, default_value_t = 60)]
    pub(crate) patience: u64,
    /// How long nothing may arrive before a change counts as settled, in milliseconds.
    #[arg(long, default_value_t = 200)]
    pub(crate) quiet: u64,
    /// Further arguments of the started server, repeatable: --server-arg=--log_output_level=xds:debug.
    #[arg(long = "server-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) server_arguments: Vec<String>,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the result as an HTML page.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}
