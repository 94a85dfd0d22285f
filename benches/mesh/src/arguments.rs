//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::change::ChangeKind;
use crate::fault_kind::FaultKind;
use crate::shape::{Layout, Shape};

/// Simulates the proxies of a mesh against an ADS server and measures how changes reach them.
///
/// Each proxy has a connection and a stream of its own, subscribes and acknowledges as Envoy does, and sends a node
/// like that of istio-proxy. Objects are YAML files in a directory that the server watches, or are written through a
/// Kubernetes API.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 120)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure one shape: start a server or use a running one, connect proxies, make changes and storms.
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArguments>),
    /// Measure meshes of several sizes and the large shapes: a result for each, and one report of all.
    #[command(after_help = SCALE_EXAMPLES)]
    Scale(Box<ScaleArguments>),
    /// Measure two builds in one run, with each change applied to one after the other, and compare them. Exit code 1
    /// when a ratio is over the limit.
    Versus(Box<VersusArguments>),
    /// Change the mesh at random for a long time. Memory must stay flat, and at the end every proxy must hold, byte for
    /// byte, what a fresh server sends to it. Exit code 1 otherwise.
    Soak(Box<SoakArguments>),
    /// Inject faults while proxies are connected and objects change. After each fault, every change must arrive in time, and
    /// every proxy must hold what a fresh server sends to it. Exit code 1 otherwise.
    Faults(Box<FaultArguments>),
    /// Send admission reviews to the webhooks at a rate: alone, and while changes are pushed to all proxies. Exit code 1 when a
    /// 99th percentile is over the limit.
    Webhooks(Box<WebhookArguments>),
    /// Ask a server of a mesh with many proxies about its own state: why, why-not, previews, wait, history, krtz, console.
    Answers(Box<AnswersArguments>),
    /// Measure what it costs that a server keeps a history, and that it is watched: each change is applied to a server without
    /// history, to an idle one and to a watched one in turn. Exit code 1 when the CPU time of all changes is over a limit.
    Overhead(Box<OverheadArguments>),
    /// Send bytes through loopback sockets to many readers: no server on this machine can be faster.
    Loopback {
        /// Bytes for each reader: in the table of a run, MB divided by affected.
        #[arg(long, default_value_t = 100_000)]
        bytes: usize,
        /// Readers, each with a connection.
        #[arg(long, default_value_t = 1000)]
        readers: usize,
        /// Number of repetitions.
        #[arg(long, default_value_t = 5)]
        repeat: usize,
    },
    /// Write the objects of a shape into a directory, and nothing else.
    Generate {
        #[command(flatten)]
        shape: ShapeArguments,
        /// Directory to write to. It is created if it does not exist.
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
    /// Results of different hours are not comparable: `versus` measures both builds in one run.
    Compare {
        /// The result to compare with.
        before: PathBuf,
        /// The result to compare.
        after: PathBuf,
        /// Largest ratio after : before that passes.
        #[arg(long, default_value_t = 1.5)]
        limit: f64,
    },
}

const RUN_EXAMPLES: &str = "Examples:
  sluice-bench run --sluiced target/release/sluiced --services 1000 --proxies 100
  sluice-bench run --sluiced target/release/sluiced --services 10000 --endpoints 2 --proxies 100 --changes vs,dr --json r.json
  sluice-bench run --sluiced target/release/sluiced --driver kube --services 10000 --proxies 0 --starts 5
  sluice-bench run --sluiced target/release/sluiced --services 10000 --endpoints 1 --proxies 0 --gateways 0 --waypoints 100
  sluice-bench run --sluiced target/release/sluiced --services 10000 --proxies 0 --gateways 0 --ztunnels 1000 --window 64
  sluice-bench run --server 127.0.0.1:15010 --pid 4711 --config-dir /tmp/mesh --services 200 --proxies 50
  sluice-bench run --server 127.0.0.1:15010 --pid 4711 --driver kube --kubeconfig ~/.kube/config --proxies 100";

const SCALE_EXAMPLES: &str = "Examples:
  sluice-bench scale --sluiced target/release/sluiced --out results --services 1000,10000 --proxies 10,100 --changes vs,dr
  sluice-bench scale --sluiced target/release/sluiced --out results --grid none --large all";

/// Shape of the mesh.
#[derive(Args, Clone, Debug)]
pub(crate) struct ShapeArguments {
    /// Services; every tenth is TCP, the rest HTTP on four ports.
    #[arg(long, default_value_t = 1000)]
    pub(crate) services: usize,
    /// Number of namespaces the services are spread over.
    #[arg(long, default_value_t = 20)]
    pub(crate) namespaces: usize,
    /// Endpoints of each service, each with its Pod.
    #[arg(long, default_value_t = 5)]
    pub(crate) endpoints: usize,
    /// ServiceEntries with a WorkloadEntry each, beside the services.
    #[arg(long, default_value_t = 0)]
    pub(crate) service_entries: usize,
    /// Gateways in addition to the sidecars. They serve HTTPS with a Secret that `secret-rotation` replaces.
    #[arg(long, default_value_t = 1)]
    pub(crate) gateways: usize,
    /// Waypoints, each of which serves an equal part of the services. A started server is in ambient mode.
    #[arg(long, default_value_t = 0)]
    pub(crate) waypoints: usize,
    /// Clients that are ztunnel, and receive all workloads and services. A started server is in ambient mode.
    #[arg(long, default_value_t = 0)]
    pub(crate) ztunnels: usize,
    /// Visibility between namespaces.
    #[arg(long, value_enum, default_value_t = Layout::Flat)]
    pub(crate) layout: Layout,
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
            gateways: self.gateways,
            waypoints: self.waypoints,
            ztunnels: self.ztunnels,
            layout: self.layout,
        })
    }
}

/// Protocol of the proxies.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum AdsProtocol {
    /// Delta, as istio-proxy uses it.
    Delta,
    /// State of the world.
    Sotw,
}

/// Storms, in addition to single changes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Storm {
    /// All proxies lose their streams and reconnect at once with the versions they hold.
    Reconnect,
    /// The server restarts and all proxies reconnect with the versions they hold. Only with --sluiced.
    Restart,
    /// One client in ten reads slowly and one in a hundred does not read, while changes go to all.
    Slow,
    /// As many further proxies connect at once, while changes are sent to the connected ones. Measures the latency of
    /// these changes relative to an idle server.
    Rush,
    /// The mesh config changes for all proxies, and endpoints change before that push ends. Measures the latency of
    /// the endpoint changes relative to an idle server.
    Backlog,
}

/// Where objects are written, and where the server reads them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum Driver {
    /// A directory of YAML files.
    #[default]
    Directory,
    /// A Kubernetes API: a server in this process, or the cluster of --kubeconfig.
    Kube,
}

/// How measurements are made, for every shape.
#[derive(Args, Clone, Debug)]
pub(crate) struct MeasureOptions {
    /// Protocol of the proxies.
    #[arg(long, value_enum, default_value_t = AdsProtocol::Delta)]
    pub(crate) protocol: AdsProtocol,
    /// Proxies subscribe to the virtual hosts of route tables one by one (VHDS). A started server has VHDS enabled.
    #[arg(long)]
    pub(crate) virtual_hosts: bool,
    /// Proxies subscribe to the endpoints of assignments one by one (LEDS). A started server has LEDS enabled.
    #[arg(long)]
    pub(crate) endpoints_by_locality: bool,
    /// Sidecars request the clusters of so many services on demand (ODCDS), and receive no other clusters that only routes send to. A
    /// started server has ODCDS enabled. Only with `--changes none`: other changes do not concern all proxies then.
    #[arg(long, value_name = "SERVICES")]
    pub(crate) on_demand_clusters: Option<usize>,
    /// Flow-control window of each proxy's stream and connection, in KiB. The default is Envoy's. With thousands of
    /// proxies of a large mesh, a smaller window saves memory of this tool.
    #[arg(long, value_name = "KIB", default_value_t = 16 << 10, value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    pub(crate) window: u32,
    /// Where objects are written.
    #[arg(long, value_enum, default_value_t = Driver::Directory)]
    pub(crate) driver: Driver,
    /// Measured changes of each kind, after one that is not counted.
    #[arg(long, default_value_t = 5)]
    pub(crate) repeat: usize,
    /// Longest time for a change to reach the last proxy, in seconds.
    #[arg(long, default_value_t = 60)]
    pub(crate) timeout: u64,
    /// A change is settled when no message has arrived for this time, in milliseconds.
    #[arg(long, default_value_t = 200)]
    pub(crate) quiet: u64,
    /// Seconds between the last connect and the reading of the server's memory, in which the server may return memory.
    #[arg(long, default_value_t = 10)]
    pub(crate) rest: u64,
    /// Further argument of the started server, repeatable: --server-arg=--log_output_level=xds:debug.
    #[arg(long = "server-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) server_arguments: Vec<String>,
    /// Do not measure how long the bytes of each kind of change take through bare sockets.
    #[arg(long)]
    pub(crate) no_loopback: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) shape: ShapeArguments,
    #[command(flatten)]
    pub(crate) measure: MeasureOptions,
    /// Connected proxies: sidecars of the first endpoints of each service.
    #[arg(long, default_value_t = 100)]
    pub(crate) proxies: usize,
    /// Binary to start as the server, on free ports of the loopback.
    #[arg(long, value_name = "FILE", required_unless_present = "server", conflicts_with = "server")]
    pub(crate) sluiced: Option<PathBuf>,
    /// Plaintext ADS port of a running server that watches --config-dir or the cluster of --kubeconfig.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) server: Option<SocketAddr>,
    /// Process id of the running server, for its CPU time and memory.
    #[arg(long)]
    pub(crate) pid: Option<u32>,
    /// Directory the objects are written to; a temporary one if not given.
    #[arg(long, value_name = "DIR")]
    pub(crate) config_dir: Option<PathBuf>,
    /// With --driver kube: the cluster to write to, instead of a server in this process. Objects are not deleted
    /// afterwards.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Number of starts of the server. The last one keeps running. The result has the time from start to ready of each.
    #[arg(long, default_value_t = 1)]
    pub(crate) starts: usize,
    /// Change kinds to make, comma separated; all if not given, `none` for none.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    pub(crate) changes: Vec<ChangeKind>,
    /// Storms to make after the changes, comma separated.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "STORM")]
    pub(crate) storms: Vec<Storm>,
    /// Share of slow clients in the storm `slow`.
    #[arg(long, default_value_t = 0.1)]
    pub(crate) slow_share: f64,
    /// Share of clients that do not read at all in the storm `slow`.
    #[arg(long, default_value_t = 0.01)]
    pub(crate) dead_share: f64,
    /// Proxies that connect in the storm `rush`; by default as many as are connected.
    #[arg(long)]
    pub(crate) rush_proxies: Option<usize>,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the result as an HTML page.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// A large shape, outside the grid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Large {
    /// 10,000 services × 5 endpoints in 200 namespaces, 1,000 proxies.
    Services,
    /// 30,000 ServiceEntries with a WorkloadEntry each, 100 proxies.
    Entries,
    /// 100,000 endpoints in one service, 100 proxies.
    Endpoints,
    /// 50,000 services, 20 proxies.
    Huge,
    /// All of them.
    All,
    /// None.
    None,
}

/// The grid to measure.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Grid {
    /// --services × --proxies.
    Full,
    /// None.
    None,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ScaleArguments {
    #[command(flatten)]
    pub(crate) measure: MeasureOptions,
    /// Binary to start as the server.
    #[arg(long, value_name = "FILE")]
    pub(crate) sluiced: PathBuf,
    /// Directory for the results, a JSON file for each shape, and for report.html.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Whether to run the grid.
    #[arg(long, value_enum, default_value_t = Grid::Full)]
    pub(crate) grid: Grid,
    /// Numbers of services of the grid, with 2 endpoints each.
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 3000, 10_000, 30_000, 50_000])]
    pub(crate) services: Vec<usize>,
    /// Numbers of proxies of the grid.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000, 3000])]
    pub(crate) proxies: Vec<usize>,
    /// Large shapes to run beside the grid.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all")]
    pub(crate) large: Vec<Large>,
    /// Change kinds to make, comma separated; all if not given, `none` for none.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    pub(crate) changes: Vec<ChangeKind>,
    /// Skip shapes that have a result in --out.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Skip shapes with more services × proxies than this. The tool needs up to 40 bytes for each while all connect.
    #[arg(long, default_value_t = 150_000_000)]
    pub(crate) at_most: usize,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct VersusArguments {
    #[command(flatten)]
    pub(crate) shape: ShapeArguments,
    #[command(flatten)]
    pub(crate) measure: MeasureOptions,
    /// The build to compare with.
    #[arg(long, value_name = "FILE")]
    pub(crate) before: PathBuf,
    /// The build to compare.
    #[arg(long, value_name = "FILE")]
    pub(crate) after: PathBuf,
    /// Connected proxies, of each build.
    #[arg(long, default_value_t = 100)]
    pub(crate) proxies: usize,
    /// Change kinds to make, comma separated; all if not given.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    pub(crate) changes: Vec<ChangeKind>,
    /// Largest ratio after : before that passes.
    #[arg(long, default_value_t = 1.5)]
    pub(crate) limit: f64,
    /// Directory for both results, before.json and after.json.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// A run with a server of its own.
#[derive(Args, Clone, Debug)]
pub(crate) struct StartedArguments {
    #[command(flatten)]
    pub(crate) shape: ShapeArguments,
    #[command(flatten)]
    pub(crate) measure: MeasureOptions,
    /// Binary to start as the server, and as the fresh server that it is compared with.
    #[arg(long, value_name = "FILE")]
    pub(crate) sluiced: PathBuf,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Questions to a server.
#[derive(Args, Clone, Debug)]
pub(crate) struct AnswersArguments {
    /// Services; every tenth is TCP, the rest HTTP on four ports.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) services: usize,
    /// Number of namespaces the services are spread over.
    #[arg(long, default_value_t = 200)]
    pub(crate) namespaces: usize,
    /// Endpoints of each service, each with its Pod.
    #[arg(long, default_value_t = 2)]
    pub(crate) endpoints: usize,
    /// Connected proxies: sidecars of the first endpoints of each service.
    #[arg(long, default_value_t = 1000)]
    pub(crate) proxies: usize,
    #[command(flatten)]
    pub(crate) measure: MeasureOptions,
    /// Binary to start as the server.
    #[arg(long, value_name = "FILE")]
    pub(crate) sluiced: PathBuf,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Changes of three servers of one build.
#[derive(Args, Clone, Debug)]
pub(crate) struct OverheadArguments {
    #[command(flatten)]
    pub(crate) shape: ShapeArguments,
    #[command(flatten)]
    pub(crate) measure: MeasureOptions,
    /// Connected proxies, of each server.
    #[arg(long, default_value_t = 1000)]
    pub(crate) proxies: usize,
    /// Changes to make, comma separated; those of shape M1 if not given.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    pub(crate) changes: Vec<ChangeKind>,
    /// Time without changes in which the CPU time of the servers is measured, such as 20s.
    #[arg(long, value_parser = duration, default_value = "20s")]
    pub(crate) idle: Duration,
    /// Largest ratio of the CPU time of all changes, idle to without history.
    #[arg(long, default_value_t = 1.01)]
    pub(crate) idle_limit: f64,
    /// Largest ratio of the CPU time of all changes, watched to idle.
    #[arg(long, default_value_t = 1.05)]
    pub(crate) watched_limit: f64,
    /// Binary to start as the servers.
    #[arg(long, value_name = "FILE")]
    pub(crate) sluiced: PathBuf,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl AnswersArguments {
    pub(crate) fn shape(&self) -> Result<Shape> {
        let Self { services, namespaces, endpoints, .. } = *self;
        let layout = Layout::Flat;
        let shape = ShapeArguments {
            services,
            namespaces,
            endpoints,
            service_entries: 0,
            gateways: 0,
            waypoints: 0,
            ztunnels: 0,
            layout,
        };
        shape.shape()
    }
}

#[derive(Args, Clone, Debug)]
pub(crate) struct SoakArguments {
    #[command(flatten)]
    pub(crate) started: StartedArguments,
    /// Connected proxies.
    #[arg(long, default_value_t = 100)]
    pub(crate) proxies: usize,
    /// Duration, such as 90s, 10m or 1h.
    #[arg(long, value_parser = duration, default_value = "1h")]
    pub(crate) duration: Duration,
    /// Changes per second.
    #[arg(long, default_value_t = 20.0)]
    pub(crate) rate: f64,
    /// Proxies that lose their stream and reconnect, per second.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) reconnects: f64,
    /// Change kinds to make, comma separated; all if not given.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    pub(crate) changes: Vec<ChangeKind>,
    /// Seed: the same number gives the same changes.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Largest growth of the server's memory between the second and the last quarter of the time, as a share.
    #[arg(long, default_value_t = 0.1)]
    pub(crate) growth: f64,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct FaultArguments {
    #[command(flatten)]
    pub(crate) started: StartedArguments,
    /// Connected proxies.
    #[arg(long, default_value_t = 200)]
    pub(crate) proxies: usize,
    /// Faults to inject, comma separated; all but the panics, which need a debug build of the server, if not given.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "FAULT")]
    pub(crate) faults: Vec<FaultKind>,
    /// Duration of each fault, such as 10s or 1m.
    #[arg(long, value_parser = duration, default_value = "10s")]
    pub(crate) hold: Duration,
    /// Changes per second while a fault lasts.
    #[arg(long, default_value_t = 20.0)]
    pub(crate) rate: f64,
    /// Longest time from the end of a fault until all proxies hold the changes made during it.
    #[arg(long, value_parser = duration, default_value = "5s")]
    pub(crate) recovery: Duration,
    /// Largest growth of the server's memory by a fault, in MiB.
    #[arg(long, default_value_t = 64.0)]
    pub(crate) growth: f64,
    /// Restarts of the fault `server-terminated`, at random moments, and of `fatal-panics` at most.
    #[arg(long, default_value_t = 20)]
    pub(crate) terminations: usize,
    /// Seed: the same number gives the same changes.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct WebhookArguments {
    #[command(flatten)]
    pub(crate) started: StartedArguments,
    /// Connected proxies.
    #[arg(long, default_value_t = 1000)]
    pub(crate) proxies: usize,
    /// Reviews per second.
    #[arg(long, default_value_t = 200)]
    pub(crate) rate: u32,
    /// Duration of each of the four measurements, such as 30s.
    #[arg(long, value_parser = duration, default_value = "20s")]
    pub(crate) duration: Duration,
    /// Largest 99th percentile of the latency that passes, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5.0)]
    pub(crate) limit: f64,
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(format!("the unit {unit:?} is not one of s, m, h")),
    };
    let number: u64 = number.parse().map_err(|_| "a duration is a number and a unit, such as 10m".to_owned())?;
    Ok(Duration::from_secs(number * seconds))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Arguments::command().debug_assert();
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!((duration("2h"), duration("7")), (Ok(Duration::from_secs(7200)), Ok(Duration::from_secs(7))));
        assert!(duration("1d").is_err() && duration("h").is_err());
    }
}
