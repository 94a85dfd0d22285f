//! `istio-iptables`: redirects the traffic of the pod to its sidecar, as the container `istio-init` does, or checks that it is
//! redirected, as `istio-validation`. The flags and variables are those of `pilot-agent istio-iptables`.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{ArgAction, Args};
use sluice_redirection::annotations::{has_ipv6, parse_bool};
use sluice_redirection::namespace::NetworkNamespace;
use sluice_redirection::sidecar::{self, DnsCapture, Groups, Settings};
use sluice_redirection::values::{Included, Owner, parse_list};
use tracing::{error, info};

/// Exit code of a validation that fails. The CNI agent finds broken pods by it.
const VALIDATION_FAILED: u8 = 126;
/// Time limit of one connection of the validation.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

fn boolean(text: &str) -> Result<bool, String> {
    parse_bool(text).ok_or_else(|| "true or false".to_owned())
}

/// Flags of `istio-iptables`.
#[derive(Args, Clone, Debug)]
pub(crate) struct IptablesArgs {
    /// Port of the proxy for outbound traffic.
    #[arg(short = 'p', long, env = "ENVOY_PORT", value_name = "PORT", default_value_t = 15001)]
    envoy_port: u16,
    /// Port of the proxy for inbound traffic.
    #[arg(short = 'z', long, env = "INBOUND_CAPTURE_PORT", value_name = "PORT", default_value_t = 15006)]
    inbound_capture_port: u16,
    /// Port of inbound HBONE, which is not redirected.
    #[arg(short = 'e', long, env = "INBOUND_TUNNEL_PORT", value_name = "PORT", default_value_t = 15008)]
    inbound_tunnel_port: u16,
    /// Users of the proxy, comma-separated; empty for 1337.
    #[arg(short = 'u', long, env = "PROXY_UID", value_name = "USERS", default_value = "")]
    proxy_uid: String,
    /// Groups of the proxy, comma-separated; empty for those with the ids of the users.
    #[arg(short = 'g', long, env = "PROXY_GID", value_name = "GROUPS", default_value = "")]
    proxy_gid: String,
    /// REDIRECT or TPROXY; empty for REDIRECT.
    #[arg(short = 'm', long, env = "ISTIO_INBOUND_INTERCEPTION_MODE", value_name = "MODE", default_value = "")]
    istio_inbound_interception_mode: String,
    /// Inbound ports that are redirected, comma-separated; * for all.
    #[arg(short = 'b', long, env = "ISTIO_INBOUND_PORTS", value_name = "PORTS", default_value = "")]
    istio_inbound_ports: String,
    /// Inbound ports that are not redirected, if all are.
    #[arg(short = 'd', long, env = "ISTIO_LOCAL_EXCLUDE_PORTS", value_name = "PORTS", default_value = "")]
    istio_local_exclude_ports: String,
    /// Interfaces whose traffic is not redirected.
    #[arg(short = 'c', long, env = "ISTIO_EXCLUDE_INTERFACES", value_name = "NAMES", default_value = "")]
    istio_exclude_interfaces: String,
    /// Ranges of destinations that are redirected, comma-separated; * for all.
    #[arg(short = 'i', long, env = "ISTIO_SERVICE_CIDR", value_name = "RANGES", default_value = "")]
    istio_service_cidr: String,
    /// Ranges of destinations that are not redirected.
    #[arg(short = 'x', long, env = "ISTIO_SERVICE_EXCLUDE_CIDR", value_name = "RANGES", default_value = "")]
    istio_service_exclude_cidr: String,
    /// Outbound ports that are redirected for any destination.
    #[arg(short = 'q', long, env = "ISTIO_OUTBOUND_PORTS", value_name = "PORTS", default_value = "")]
    istio_outbound_ports: String,
    /// Outbound ports that are not redirected.
    #[arg(short = 'o', long, env = "ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE", value_name = "PORTS", default_value = "")]
    istio_local_outbound_ports_exclude: String,
    /// Interfaces of virtual machines, whose traffic is outbound traffic.
    #[arg(short = 'k', long, env = "KUBE_VIRT_INTERFACES", value_name = "NAMES", default_value = "")]
    kube_virt_interfaces: String,
    /// Mark of packets that are routed to the proxy in the mode TPROXY.
    #[arg(short = 't', long, env = "ISTIO_INBOUND_TPROXY_MARK", value_name = "MARK", default_value_t = 1337)]
    istio_inbound_tproxy_mark: u32,
    /// Routing table of these packets.
    #[arg(short = 'r', long, env = "ISTIO_INBOUND_TPROXY_ROUTE_TABLE", value_name = "TABLE", default_value_t = 133)]
    istio_inbound_tproxy_route_table: u32,
    /// Groups whose outbound traffic is redirected, comma-separated; * for all.
    #[arg(
        long = "owner-groups",
        hide = true,
        env = "ISTIO_OUTBOUND_OWNER_GROUPS",
        value_name = "GROUPS",
        default_value = "*"
    )]
    owner_groups: String,
    /// Groups whose outbound traffic is not redirected, if that of all is.
    #[arg(long, hide = true, env = "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", value_name = "GROUPS", default_value = "")]
    owner_groups_exclude: String,
    /// IPv4 addresses that are for the application itself.
    #[arg(
        long,
        hide = true,
        env = "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR",
        value_name = "RANGE",
        default_value = "127.0.0.1/32"
    )]
    loopback_cidr: String,
    /// DNS requests to the servers of /etc/resolv.conf are redirected to the agent.
    #[arg(long, env = "ISTIO_META_DNS_CAPTURE", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    redirect_dns: bool,
    /// With --redirect-dns, all DNS requests are.
    #[arg(long, env = "CAPTURE_ALL_DNS", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    capture_all_dns: bool,
    /// Packets without a known connection are dropped.
    #[arg(long, env = "INVALID_DROP", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    drop_invalid: bool,
    /// IPv6 is also redirected if it is not the first address of the pod.
    #[arg(long, env = "ISTIO_DUAL_STACK", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    dual_stack: bool,
    /// The rules are removed.
    #[arg(long, env = "CLEANUP_ONLY", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    cleanup_only: bool,
    /// The rules are printed only.
    #[arg(short = 'n', long, env = "DRY_RUN", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    dry_run: bool,
    /// No rules are written.
    #[arg(long, env = "SKIP_RULE_APPLY", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    skip_rule_apply: bool,
    /// Checks that traffic is redirected. The exit code is 126 if it is not.
    #[arg(long, env = "RUN_VALIDATION", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    run_validation: bool,
    /// A port without a listener, to which the check connects.
    #[arg(long, env = "IPTABLES_PROBE_PORT", value_name = "PORT", default_value_t = 15002)]
    iptables_probe_port: u16,
    /// Seconds until the check fails.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    probe_timeout_seconds: u64,
    /// The network namespace of the pod; that of the process without one.
    #[arg(long, env = "NETWORK_NAMESPACE", value_name = "FILE")]
    network_namespace: Option<PathBuf>,
    /// Accepted without effect: the rules are always replaced as a whole.
    #[arg(long, hide = true)]
    force_apply: bool,
    /// Accepted without effect: the rules are always replaced as a whole.
    #[arg(long, hide = true)]
    reconcile: bool,
    /// Accepted without effect: the rules are always those of nftables.
    #[arg(long, hide = true)]
    native_nftables: bool,
}

impl IptablesArgs {
    /// The settings of the rules. IPv6 depends on the namespace.
    fn settings(&self) -> Result<Settings> {
        let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
        let users = or(&self.proxy_uid, "1337");
        let groups = or(&self.proxy_gid, &users);
        let dns = match (self.redirect_dns, self.capture_all_dns) {
            (false, _) => DnsCapture::None,
            (true, true) => DnsCapture::All,
            (true, false) => DnsCapture::Servers(dns_servers(&read("/etc/resolv.conf")?)),
        };
        let owner_groups = match Included::<Owner>::parse(&self.owner_groups).context("ISTIO_OUTBOUND_OWNER_GROUPS")? {
            Included::All => {
                Groups::Except(parse_list(&self.owner_groups_exclude).context("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE")?)
            }
            Included::Only(_) if !self.owner_groups_exclude.is_empty() => {
                bail!("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE: has no effect unless ISTIO_OUTBOUND_OWNER_GROUPS is *")
            }
            Included::Only(groups) => Groups::Only(groups),
        };
        let ports_excluded = &self.istio_local_outbound_ports_exclude;
        Ok(Settings {
            outbound_port: self.envoy_port,
            inbound_port: self.inbound_capture_port,
            tunnel_port: self.inbound_tunnel_port,
            users: parse_list(&users).context("--proxy-uid")?,
            groups: parse_list(&groups).context("--proxy-gid")?,
            interception: or(&self.istio_inbound_interception_mode, "REDIRECT")
                .parse()
                .context("--istio-inbound-interception-mode")?,
            tproxy_mark: self.istio_inbound_tproxy_mark,
            tproxy_table: self.istio_inbound_tproxy_route_table,
            inbound_ports: Included::parse(&self.istio_inbound_ports).context("--istio-inbound-ports")?,
            inbound_ports_excluded: parse_list(&self.istio_local_exclude_ports)
                .context("--istio-local-exclude-ports")?,
            outbound_ranges: Included::parse(&self.istio_service_cidr).context("--istio-service-cidr")?,
            outbound_ranges_excluded: parse_list(&self.istio_service_exclude_cidr)
                .context("--istio-service-exclude-cidr")?,
            outbound_ports: parse_list(&self.istio_outbound_ports).context("--istio-outbound-ports")?,
            outbound_ports_excluded: parse_list(ports_excluded).context("--istio-local-outbound-ports-exclude")?,
            excluded_interfaces: parse_list(&self.istio_exclude_interfaces).context("--istio-exclude-interfaces")?,
            virtual_interfaces: parse_list(&self.kube_virt_interfaces).context("--kube-virt-interfaces")?,
            owner_groups,
            dns,
            drop_invalid: self.drop_invalid,
            loopback: self.loopback_cidr.parse().context("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR")?,
            ipv6: false,
        })
    }
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.to_owned())
}

/// The addresses of `nameserver` lines.
fn dns_servers(text: &str) -> Vec<IpAddr> {
    let servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    servers.filter_map(|address| address.trim().parse().ok()).collect()
}

/// Writes the rules, or removes or checks them.
///
/// # Errors
/// A flag is invalid, or the rules cannot be written.
pub(crate) fn run(args: &IptablesArgs) -> Result<ExitCode> {
    let settings = args.settings()?;
    if args.dry_run {
        write!(std::io::stdout(), "{}", sidecar::rules(&settings)).context("print the rules")?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.skip_rule_apply {
        let write = || match args.cleanup_only {
            true => sidecar::remove(&settings),
            false => sidecar::redirect(&Settings { ipv6: has_ipv6(args.dual_stack), ..settings }),
        };
        match &args.network_namespace {
            Some(path) => NetworkNamespace::open(path)?.run(write)?,
            None => write(),
        }
        .context("write the rules")?;
        info!("rules are written");
    }
    if args.run_validation {
        let ipv6 = has_ipv6(false);
        if let Err(reason) = validate(args, ipv6) {
            error!(
                error = format!("{reason:#}"),
                "traffic is not redirected. With the CNI agent, the pod started before the node was ready: it is repaired or \
                 deleted with the setting cni.repair, otherwise delete it"
            );
            return Ok(ExitCode::from(VALIDATION_FAILED));
        }
        info!("traffic is redirected");
    }
    Ok(ExitCode::SUCCESS)
}

/// Connects to a port without a listener, at an address of the loopback interface from which the proxy's users are
/// redirected to the inbound port.
fn validate(args: &IptablesArgs, ipv6: bool) -> Result<()> {
    let (own, target): (IpAddr, IpAddr) = match ipv6 {
        true => (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6).into()),
        false => (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(127, 0, 0, 6).into()),
    };
    // Either may be taken: the proxy may be running already.
    let _listeners: Vec<_> = [args.envoy_port, args.inbound_capture_port]
        .iter()
        .filter_map(|port| TcpListener::bind((own, *port)).ok())
        .collect();
    let target = SocketAddr::new(target, args.iptables_probe_port);
    let deadline = Instant::now() + Duration::from_secs(args.probe_timeout_seconds);
    loop {
        match TcpStream::connect_timeout(&target, PROBE_TIMEOUT) {
            Ok(_) => return Ok(()),
            Err(error) => ensure!(Instant::now() < deadline, "connect to {target}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use sluice_redirection::sidecar::Interception;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: IptablesArgs,
    }

    fn settings(line: &[&str]) -> Result<Settings> {
        let line = [&["istio-iptables"], line].concat();
        Line::try_parse_from(line).expect("a command line").args.settings()
    }

    #[test]
    fn arguments_of_the_injection_template_are_read() {
        let line =
            "-p 15001 -z 15006 -u 1337 -m REDIRECT -i * -b * -d 15090,15021,15020 -q 8000 -o 9000 -c eth1 -k vm0";
        let mut line: Vec<_> = line.split(' ').collect();
        line.extend(["-x", "", "--force-apply"]);
        let settings = settings(&line).expect("settings");
        assert_eq!(settings.inbound_ports, Included::All);
        assert_eq!(settings.inbound_ports_excluded.len(), 3);
        assert_eq!(settings.outbound_ranges, Included::All);
        assert!(settings.outbound_ranges_excluded.is_empty());
        assert_eq!(settings.groups, [Owner::id(1337)]);
        assert_eq!(settings.interception, Interception::Redirect);
    }

    #[test]
    fn invalid_flag_is_named() {
        for (line, expected) in [
            (["-b", "http"], "--istio-inbound-ports: invalid port \"http\""),
            (["-i", "10.0.0.0/64"], "--istio-service-cidr: invalid range"),
            (["-m", "NONE"], "--istio-inbound-interception-mode: invalid mode"),
        ] {
            let error = format!("{:#}", settings(&line).expect_err(expected));
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn servers_of_resolv_conf_are_read() {
        let text = "search a.b\nnameserver 10.96.0.10\nnameserver fd00::a\noptions ndots:5\n";
        assert_eq!(
            dns_servers(text),
            ["10.96.0.10", "fd00::a"].map(|text| text.parse::<IpAddr>().expect("an address"))
        );
    }
}
