//! The `dashboard` subcommand (I11): a port of a pod on this machine, for a browser.

use std::io::{self, Write};

use crate::answer_output::fail;
use crate::connect::add_on::{self, AddOn, AddOnTarget, connect_to_add_on};
use crate::connect::{ForwardedPort, PodEndpoint, QueryError, connect_to_control_plane_port, connect_to_proxy};
use crate::dashboard_args::{AddOnArgs, ControlPlaneDashboardArgs, DashboardCommand, LocalPortArgs};

const EXIT_NOT_FOUND: u8 = 1;
const HTTP_PORT: u16 = 8_080;

type Forwarded = Result<PodEndpoint, QueryError>;

/// Runs the subcommand until it is interrupted, and returns the exit code.
pub(crate) fn run(command: &DashboardCommand, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let (forwarded, path) = match command {
        DashboardCommand::Controlz(args) => (of_control_plane(&args.control_plane, args.ctrlz_port), ""),
        DashboardCommand::IstiodDebug(args) => (of_control_plane(args, HTTP_PORT), "debug"),
        DashboardCommand::Envoy(args) => {
            (first_usable(args.local, args.envoy.proxy_admin_port, |port| args.envoy.connect_to(port)), "")
        }
        DashboardCommand::Prometheus(args) => of_add_on(&add_on::PROMETHEUS, args),
        DashboardCommand::Grafana(args) => of_add_on(&add_on::GRAFANA, args),
        DashboardCommand::Kiali(args) => of_add_on(&add_on::KIALI, args),
        DashboardCommand::Jaeger(args) => of_add_on(&add_on::JAEGER, args),
        DashboardCommand::Zipkin(args) => of_add_on(&add_on::ZIPKIN, args),
        DashboardCommand::Skywalking(args) => of_add_on(&add_on::SKYWALKING, args),
    };
    match forwarded {
        Ok(forwarded) => {
            writeln!(out, "{}{path}", forwarded.url())?;
            writeln!(errors, "The port of {} is forwarded until Ctrl-C.", forwarded.name())?;
            forwarded.serve_until_interrupted().map(|()| 0)
        }
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

fn of_control_plane(args: &ControlPlaneDashboardArgs, port: u16) -> Forwarded {
    first_usable(args.local, port, |port| match &args.pod {
        Some(pod) => connect_to_proxy(&args.cluster, pod, &args.cluster.istio_namespace, port),
        None => connect_to_control_plane_port(&args.cluster, port),
    })
}

fn of_add_on(add_on: &AddOn, args: &AddOnArgs) -> (Forwarded, &'static str) {
    let forwarded = first_usable(args.local, args.ui_port.unwrap_or(add_on.port), |port| {
        connect_to_add_on(add_on, &AddOnTarget { cluster: &args.cluster, namespace: &args.namespace, port })
    });
    (forwarded, add_on.path)
}

/// Forwards a port of a pod from the first port of this machine that can be used.
fn first_usable(local: LocalPortArgs, port: u16, connect: impl Fn(ForwardedPort) -> Forwarded) -> Forwarded {
    let mut result = None;
    for candidate in local.candidates(port) {
        match connect(candidate) {
            // The local port is in use, or not permitted.
            Err(error @ QueryError::PortForward { .. }) => result = Some(Err(error)),
            other => return other,
        }
    }
    result.unwrap_or_else(|| Err(QueryError::Flags("--port: there is no port".to_owned())))
}
