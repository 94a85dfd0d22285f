//! Flags of `dashboard`.

use clap::{Args, Subcommand};

use crate::connect::ForwardedPort;
use crate::connect::kubernetes::ClusterFlags;
use crate::proxy_config::args::EnvoyArgs;

pub(crate) const DASHBOARD_EXAMPLES: &str = "\
Examples:
  sluicectl dashboard controlz                    ControlZ of the first pod of the control plane
  sluicectl dashboard istiod-debug                debug pages of the control plane
  sluicectl dashboard envoy deploy/cart.shop      Envoy's admin interface
  sluicectl dashboard kiali -n monitoring         the pod is in istio-system, or in monitoring
  sluicectl dashboard grafana --port 8000         at http://127.0.0.1:8000

A port of the pod is forwarded until Ctrl-C, from the same port of this machine if it is free, or from
--port. The address is printed; no browser is opened.

Pods of add-ons are found by the labels that those of Istio have: app.kubernetes.io/name of Prometheus and
Grafana, app of Jaeger, Kiali, Zipkin and SkyWalking (skywalking-ui).

Exit codes: 0 interrupted, 1 there is no such pod, 2 invalid command line, 3 the API server cannot be
reached, or the local port cannot be used.";

/// Subcommands of `dashboard`.
#[derive(Debug, Subcommand)]
pub(crate) enum DashboardCommand {
    /// ControlZ: information about the process, and log levels.
    #[command(after_help = DASHBOARD_EXAMPLES)]
    Controlz(ControlzArgs),
    /// Debug pages of the control plane.
    #[command(after_help = DASHBOARD_EXAMPLES)]
    IstiodDebug(ControlPlaneDashboardArgs),
    /// The admin interface of a proxy's Envoy.
    #[command(visible_alias = "proxy", after_help = DASHBOARD_EXAMPLES)]
    Envoy(EnvoyDashboardArgs),
    /// Pages of Prometheus.
    #[command(after_help = DASHBOARD_EXAMPLES)]
    Prometheus(AddOnArgs),
    /// Pages of Grafana.
    #[command(after_help = DASHBOARD_EXAMPLES)]
    Grafana(AddOnArgs),
    /// Pages of Kiali.
    #[command(after_help = DASHBOARD_EXAMPLES)]
    Kiali(AddOnArgs),
    /// Pages of Jaeger.
    #[command(after_help = DASHBOARD_EXAMPLES)]
    Jaeger(AddOnArgs),
    /// Pages of Zipkin.
    #[command(after_help = DASHBOARD_EXAMPLES)]
    Zipkin(AddOnArgs),
    /// Pages of SkyWalking.
    #[command(after_help = DASHBOARD_EXAMPLES)]
    Skywalking(AddOnArgs),
}

/// The port of this machine.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LocalPortArgs {
    /// Port of this machine. Without it: that of the pod if it is free, or any other.
    #[arg(short, long, value_name = "PORT")]
    port: Option<u16>,
    /// Accepted as by istioctl. No browser is opened.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    browser: Option<bool>,
}

impl LocalPortArgs {
    /// The ports to try, one after the other, of a port of a pod.
    pub(crate) fn candidates(self, port: u16) -> Vec<ForwardedPort> {
        let local = self.port.map_or(vec![port, 0], |local| vec![local]);
        local.into_iter().map(|local_port| ForwardedPort { port, local_port }).collect()
    }
}

/// Flags of dashboards of the control plane.
#[derive(Debug, Args)]
pub(crate) struct ControlPlaneDashboardArgs {
    /// The pod: POD[.NAMESPACE], or deploy/NAME[.NAMESPACE]. Without it: the first pod of the control plane.
    #[arg(value_name = "POD", conflicts_with = "revision")]
    pub(crate) pod: Option<String>,
    #[command(flatten)]
    pub(crate) local: LocalPortArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
}

/// Flags of `dashboard controlz`.
#[derive(Debug, Args)]
pub(crate) struct ControlzArgs {
    /// Port of ControlZ in the pod.
    #[arg(long, visible_alias = "ctrlz_port", value_name = "PORT", default_value_t = 9_876)]
    pub(crate) ctrlz_port: u16,
    #[command(flatten)]
    pub(crate) control_plane: ControlPlaneDashboardArgs,
}

/// Flags of `dashboard envoy`.
#[derive(Debug, Args)]
pub(crate) struct EnvoyDashboardArgs {
    #[command(flatten)]
    pub(crate) local: LocalPortArgs,
    #[command(flatten)]
    pub(crate) envoy: EnvoyArgs,
}

/// Flags of dashboards of add-ons.
#[derive(Debug, Args)]
pub(crate) struct AddOnArgs {
    /// Namespace in which the pod is looked for after that of the control plane.
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
    /// Port of the pages in the pod. Without it, the one that the add-on has in Istio's samples.
    #[arg(long, value_name = "PORT")]
    pub(crate) ui_port: Option<u16>,
    #[command(flatten)]
    pub(crate) local: LocalPortArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
}
