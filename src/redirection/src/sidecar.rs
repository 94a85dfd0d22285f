//! Redirection of a pod with a sidecar, by the settings of `istio-iptables`.
//!
//! The rules have the order of `tools/istio-iptables/pkg/capture` of Istio. A chain of iptables that returns is here a rule
//! that accepts: the table has nothing after it.

use std::net::IpAddr;
use std::str::FromStr;

use crate::apply::{self, ApplyError, MarkRoute};
use crate::ruleset::{Hook, Ruleset};
use crate::values::{Included, Interface, Owner, Ports, Range, ValueError};
use crate::{DNS_PORT, INBOUND_PORT, OUTBOUND_PORT, TUNNEL_PORT};

/// The table in the namespace of a pod.
pub const TABLE: &str = "istio-sidecar";

/// In TPROXY mode, the mark of packets from the proxy to the application by the address of the pod.
const OUTBOUND_MARK: u32 = 1338;

/// How inbound connections reach the proxy.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Interception {
    /// The destination is changed.
    #[default]
    Redirect,
    /// Source and destination are kept; the proxy has `CAP_NET_ADMIN`.
    Tproxy,
}

impl FromStr for Interception {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "REDIRECT" => Ok(Self::Redirect),
            "TPROXY" => Ok(Self::Tproxy),
            _ => Err(ValueError::new(format!("invalid mode {text:?}: REDIRECT or TPROXY"))),
        }
    }
}

/// Which DNS requests are redirected to the agent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum DnsCapture {
    /// None.
    #[default]
    None,
    /// All requests to port 53.
    All,
    /// Those to these servers.
    Servers(Vec<IpAddr>),
}

/// Groups whose outbound traffic is redirected.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Groups {
    /// All except these.
    Except(Vec<Owner>),
    /// Only these.
    Only(Vec<Owner>),
}

/// Settings of a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Port of the proxy for outbound traffic.
    pub outbound_port: u16,
    /// Port of the proxy for inbound traffic.
    pub inbound_port: u16,
    /// Port of inbound HBONE, which is not redirected.
    pub tunnel_port: u16,
    /// Users of the proxy. Their traffic is not redirected.
    pub users: Vec<Owner>,
    /// Groups of the proxy.
    pub groups: Vec<Owner>,
    /// How inbound connections reach the proxy.
    pub interception: Interception,
    /// In TPROXY mode, the mark of packets that are routed to the proxy.
    pub tproxy_mark: u32,
    /// In TPROXY mode, the routing table of these packets.
    pub tproxy_table: u32,
    /// Inbound ports that are redirected.
    pub inbound_ports: Included<Ports>,
    /// Inbound ports that are not redirected, if all are.
    pub inbound_ports_excluded: Vec<Ports>,
    /// Destinations that are redirected.
    pub outbound_ranges: Included<Range>,
    /// Destinations that are not redirected.
    pub outbound_ranges_excluded: Vec<Range>,
    /// Outbound ports that are redirected for any destination.
    pub outbound_ports: Vec<Ports>,
    /// Outbound ports that are not redirected.
    pub outbound_ports_excluded: Vec<Ports>,
    /// Interfaces whose traffic is not redirected.
    pub excluded_interfaces: Vec<Interface>,
    /// Interfaces of virtual machines, whose traffic is outbound traffic.
    pub virtual_interfaces: Vec<Interface>,
    /// Groups whose outbound traffic is redirected.
    pub owner_groups: Groups,
    /// Which DNS requests are redirected.
    pub dns: DnsCapture,
    /// Drop packets without a known connection instead of resetting the connection.
    pub drop_invalid: bool,
    /// IPv4 addresses that are for the application itself.
    pub loopback: Range,
    /// Also redirect IPv6.
    pub ipv6: bool,
}

impl Default for Settings {
    /// The defaults of `istio-iptables`: all outbound traffic and no inbound traffic of processes other than user 1337.
    fn default() -> Self {
        Self {
            outbound_port: OUTBOUND_PORT,
            inbound_port: INBOUND_PORT,
            tunnel_port: TUNNEL_PORT,
            users: vec![Owner::id(1337)],
            groups: vec![Owner::id(1337)],
            interception: Interception::Redirect,
            tproxy_mark: 1337,
            tproxy_table: 133,
            inbound_ports: Included::Only(Vec::new()),
            inbound_ports_excluded: Vec::new(),
            outbound_ranges: Included::Only(Vec::new()),
            outbound_ranges_excluded: Vec::new(),
            outbound_ports: Vec::new(),
            outbound_ports_excluded: Vec::new(),
            excluded_interfaces: Vec::new(),
            virtual_interfaces: Vec::new(),
            owner_groups: Groups::Except(Vec::new()),
            dns: DnsCapture::None,
            drop_invalid: false,
            loopback: Range::from(IpAddr::from([127, 0, 0, 1])),
            ipv6: false,
        }
    }
}

impl Settings {
    fn route(&self) -> MarkRoute {
        MarkRoute { mark: self.tproxy_mark, mask: None, preference: None, table: self.tproxy_table }
    }

    /// `meta skuid X` of each user and `meta skgid Y` of each group of the proxy, with the key and the owner.
    fn owners(&self) -> impl Iterator<Item = (&'static str, &Owner)> {
        let users = self.users.iter().map(|user| ("skuid", user));
        users.chain(self.groups.iter().map(|group| ("skgid", group)))
    }

    fn ranges(&self) -> &[Range] {
        match &self.outbound_ranges {
            Included::All => &[],
            Included::Only(ranges) => ranges,
        }
    }
}

/// The rules of a pod.
#[must_use]
pub fn rules(settings: &Settings) -> Ruleset {
    let mut rules = Ruleset::new(TABLE, settings.ipv6);
    dns_zones(&mut rules, settings);
    mangle_rules(&mut rules, settings);
    inbound_rules(&mut rules, settings);
    outbound_rules(&mut rules, settings);
    rules
}

/// Rules about ranges of addresses for families that the table has.
fn ranges<'a>(rules: &Ruleset, ranges: &'a [Range]) -> impl Iterator<Item = String> + use<'a> {
    let ipv6 = rules.ipv6();
    ranges.iter().filter(move |range| ipv6 || !range.is_ipv6()).map(|range| {
        let family = if range.is_ipv6() { "ip6" } else { "ip" };
        format!("{family} daddr {range}")
    })
}

/// DNS requests of the application and of the agent may have the same ports: each has a zone of connection tracking.
fn dns_zones(rules: &mut Ruleset, settings: &Settings) {
    if settings.dns == DnsCapture::None {
        return;
    }
    for (key, owner) in settings.owners() {
        rules.rule(Hook::RawOutput, format!("udp dport 53 meta {key} {owner} ct zone set 1 accept"));
        rules.rule(Hook::RawOutput, format!("udp sport {DNS_PORT} meta {key} {owner} ct zone set 2 accept"));
    }
    for (requests, responses) in dns_servers(rules, settings) {
        rules.rule(Hook::RawOutput, format!("{requests}udp dport 53 ct zone set 2"));
        rules.rule(Hook::RawPrerouting, format!("{responses}udp sport 53 ct zone set 1"));
    }
}

/// Matches of requests to the DNS servers, and of their responses.
fn dns_servers(rules: &Ruleset, settings: &Settings) -> Vec<(String, String)> {
    match &settings.dns {
        DnsCapture::None => Vec::new(),
        DnsCapture::All => vec![(String::new(), String::new())],
        DnsCapture::Servers(servers) => servers
            .iter()
            .filter(|server| rules.ipv6() || server.is_ipv4())
            .map(|server| {
                let family = if server.is_ipv6() { "ip6" } else { "ip" };
                (format!("{family} daddr {server} "), format!("{family} saddr {server} "))
            })
            .collect(),
    }
}

fn mangle_rules(rules: &mut Ruleset, settings: &Settings) {
    const ARRIVING: Hook = Hook::ManglePrerouting;
    const SENT: Hook = Hook::MangleOutput;
    let tproxy = settings.interception == Interception::Tproxy;
    if tproxy {
        for interface in &settings.excluded_interfaces {
            rules.rule(ARRIVING, format!("iifname \"{interface}\" accept"));
            rules.rule(SENT, format!("oifname \"{interface}\" accept"));
        }
    }
    if settings.drop_invalid {
        rules.rule(ARRIVING, "ct state invalid drop");
    }
    if !tproxy {
        return;
    }
    let mark = settings.tproxy_mark;
    // What the proxy sends to the application with the address of the client.
    rules.rule(ARRIVING, format!("meta l4proto tcp meta mark {mark} ct mark set meta mark accept"));
    if settings.inbound_ports != Included::Only(Vec::new()) {
        rules.versioned_rule(
            ARRIVING,
            "{ip} saddr {address} meta l4proto tcp iifname \"lo\" accept",
            "127.0.0.6",
            "::6",
        );
        rules.rule(ARRIVING, format!("meta l4proto tcp iifname \"lo\" meta mark != {OUTBOUND_MARK} accept"));
        for ports in inbound_matches(rules, ARRIVING, settings) {
            let known = format!("{ports} ct state established,related meta mark set {mark} accept");
            rules.rule(ARRIVING, known);
            // `tproxy` has no effect without a transparent socket: the connection must not reach the application then.
            let port = settings.inbound_port;
            let family = if rules.ipv6() { "ip " } else { "" };
            let v4 = format!("ip daddr != {} {ports}", settings.loopback);
            rules.rule(ARRIVING, format!("{v4} meta mark set {mark} tproxy {family}to :{port} accept"));
            rules.rule(ARRIVING, format!("{v4} drop"));
            if rules.ipv6() {
                let v6 = format!("ip6 daddr != ::1 {ports}");
                rules.rule(ARRIVING, format!("{v6} meta mark set {mark} tproxy ip6 to :{port} accept"));
                rules.rule(ARRIVING, format!("{v6} drop"));
            }
        }
    }
    rules.rule(SENT, format!("meta l4proto tcp oifname \"lo\" meta mark {mark} accept"));
    for (key, owner) in settings.owners() {
        let rule = format!(
            "{{ip}} daddr != {{address}} meta l4proto tcp oifname \"lo\" meta {key} {owner} meta mark set {OUTBOUND_MARK}"
        );
        rules.versioned_rule(SENT, &rule, &settings.loopback.to_string(), "::1");
    }
    rules.rule(SENT, format!("meta l4proto tcp ct mark {mark} meta mark set ct mark"));
}

/// Accepts excluded inbound ports, and returns the matches of those that are redirected.
fn inbound_matches(rules: &mut Ruleset, hook: Hook, settings: &Settings) -> Vec<String> {
    match &settings.inbound_ports {
        Included::All => {
            for ports in &settings.inbound_ports_excluded {
                rules.rule(hook, format!("tcp dport {ports} accept"));
            }
            vec!["meta l4proto tcp".to_owned()]
        }
        Included::Only(ports) => ports.iter().map(|ports| format!("tcp dport {ports}")).collect(),
    }
}

fn inbound_rules(rules: &mut Ruleset, settings: &Settings) {
    const NAT: Hook = Hook::NatPrerouting;
    for interface in &settings.virtual_interfaces {
        let from = format!("iifname \"{interface}\"");
        let redirect = format!("meta l4proto tcp redirect to :{}", settings.outbound_port);
        if settings.outbound_ranges == Included::All {
            rules.rule(NAT, format!("{from} {redirect}"));
        }
        for range in ranges(rules, settings.ranges()) {
            rules.rule(NAT, format!("{from} {range} {redirect}"));
        }
        rules.rule(NAT, format!("{from} accept"));
    }
    for interface in &settings.excluded_interfaces {
        rules.rule(NAT, format!("iifname \"{interface}\" accept"));
    }
    if settings.interception == Interception::Redirect {
        rules.rule(NAT, format!("tcp dport {} accept", settings.tunnel_port));
        for ports in inbound_matches(rules, NAT, settings) {
            rules.rule(NAT, format!("{ports} redirect to :{}", settings.inbound_port));
        }
    }
}

fn outbound_rules(rules: &mut Ruleset, settings: &Settings) {
    const NAT: Hook = Hook::NatOutput;
    let loopback = settings.loopback.to_string();
    for interface in &settings.excluded_interfaces {
        rules.rule(NAT, format!("oifname \"{interface}\" accept"));
    }
    for ports in &settings.outbound_ports_excluded {
        rules.rule(NAT, format!("tcp dport {ports} accept"));
        rules.rule(NAT, format!("udp dport {ports} accept"));
    }
    // The proxy binds to these addresses when it forwards inbound traffic as it is.
    rules.versioned_rule(NAT, "oifname \"lo\" {ip} saddr {address} accept", "127.0.0.6", "::6");
    proxy_rules(rules, settings);
    match &settings.owner_groups {
        Groups::Except(groups) => {
            for group in groups {
                rules.rule(NAT, format!("meta skgid {group} accept"));
            }
        }
        Groups::Only(groups) => {
            let none: Vec<_> = groups.iter().map(|group| format!("meta skgid != {group}")).collect();
            let none = if none.is_empty() { String::new() } else { format!("{} ", none.join(" ")) };
            rules.rule(NAT, format!("{none}accept"));
        }
    }
    for (requests, _) in dns_servers(rules, settings) {
        rules.rule(NAT, format!("{requests}tcp dport 53 redirect to :{DNS_PORT}"));
        rules.rule(NAT, format!("{requests}udp dport 53 redirect to :{DNS_PORT}"));
    }
    rules.versioned_rule(NAT, "{ip} daddr {address} accept", &loopback, "::1");
    for range in ranges(rules, &settings.outbound_ranges_excluded) {
        rules.rule(NAT, format!("{range} accept"));
    }
    let redirect = format!("redirect to :{}", settings.outbound_port);
    for ports in &settings.outbound_ports {
        rules.rule(NAT, format!("tcp dport {ports} {redirect}"));
    }
    if settings.outbound_ranges == Included::All {
        rules.rule(NAT, format!("meta l4proto tcp {redirect}"));
    }
    for range in ranges(rules, settings.ranges()) {
        rules.rule(NAT, format!("{range} meta l4proto tcp {redirect}"));
    }
}

/// Traffic of the proxy itself, and of the application to itself.
fn proxy_rules(rules: &mut Ruleset, settings: &Settings) {
    const NAT: Hook = Hook::NatOutput;
    let (tunnel, dns) = (settings.tunnel_port, settings.dns != DnsCapture::None);
    let loops = settings.ranges().iter().any(Range::is_loopback);
    for (key, owner) in settings.owners() {
        // The proxy calls its own application by the address of a service: the call is inbound traffic. The agent resolves
        // names as a user of the proxy.
        let ports = if dns && key == "skuid" { format!("{{ 53, {tunnel} }}") } else { tunnel.to_string() };
        // `{` and `}` of a set are no placeholders, as they have other text inside.
        let rule = format!(
            "oifname \"lo\" {{ip}} daddr != {{address}} tcp dport != {ports} meta {key} {owner} redirect to :{}",
            settings.inbound_port
        );
        rules.versioned_rule(NAT, &rule, &settings.loopback.to_string(), "::1");
        // The application calls itself by the address of the pod. A DNS server may listen on the loopback interface.
        if !loops {
            let protocol = if dns { "tcp dport != 53 " } else { "" };
            rules.rule(NAT, format!("oifname \"lo\" {protocol}meta {key} != {owner} accept"));
        }
        rules.rule(NAT, format!("meta {key} {owner} accept"));
    }
}

/// Redirects the traffic of the pod whose network namespace the calling thread is in. A repeated call replaces the rules.
///
/// # Errors
/// `nft` or `ip` fails. The rules of an earlier call are then still in effect.
pub fn redirect(settings: &Settings) -> Result<(), ApplyError> {
    if settings.interception == Interception::Tproxy {
        settings.route().add(settings.ipv6)?;
    }
    apply::nft(&rules(settings).to_string())
}

/// Removes what [`redirect`] has added in the namespace of the calling thread.
///
/// # Errors
/// `nft` or `ip` fails.
pub fn remove(settings: &Settings) -> Result<(), ApplyError> {
    apply::remove_table(TABLE)?;
    if settings.interception == Interception::Tproxy { settings.route().remove() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules of a chain.
    fn chain(settings: &Settings, name: &str) -> Vec<String> {
        let text = rules(settings).to_string();
        let start = format!("chain {name} {{");
        let lines = text.lines().map(str::trim).skip_while(|line| *line != start).skip(2);
        lines.take_while(|line| *line != "}").map(str::to_owned).collect()
    }

    fn injected() -> Settings {
        Settings {
            inbound_ports: Included::All,
            inbound_ports_excluded: [15090, 15021, 15020].map(Ports::from).to_vec(),
            outbound_ranges: Included::All,
            ..Settings::default()
        }
    }

    #[test]
    fn default_rules_of_an_injected_pod() {
        let settings = injected();
        let inbound = [
            "tcp dport 15008 accept",
            "tcp dport 15090 accept",
            "tcp dport 15021 accept",
            "tcp dport 15020 accept",
            "meta l4proto tcp redirect to :15006",
        ];
        assert_eq!(chain(&settings, "nat-prerouting"), inbound);
        let outbound = [
            "oifname \"lo\" ip saddr 127.0.0.6 accept",
            "oifname \"lo\" ip daddr != 127.0.0.1/32 tcp dport != 15008 meta skuid 1337 redirect to :15006",
            "oifname \"lo\" meta skuid != 1337 accept",
            "meta skuid 1337 accept",
            "oifname \"lo\" ip daddr != 127.0.0.1/32 tcp dport != 15008 meta skgid 1337 redirect to :15006",
            "oifname \"lo\" meta skgid != 1337 accept",
            "meta skgid 1337 accept",
            "ip daddr 127.0.0.1/32 accept",
            "meta l4proto tcp redirect to :15001",
        ];
        assert_eq!(chain(&settings, "nat-output"), outbound);
        assert!(chain(&settings, "mangle-prerouting").is_empty());
    }

    #[test]
    fn exclusions_precede_inclusions() {
        let parse = |text: &str| text.parse::<Range>().expect("a range");
        let settings = Settings {
            ipv6: true,
            outbound_ranges: Included::Only(vec![parse("10.0.0.0/8"), parse("fd00::/8")]),
            outbound_ranges_excluded: vec![parse("10.1.0.0/16")],
            outbound_ports: vec![Ports::from(9000)],
            outbound_ports_excluded: vec![Ports::from(3306)],
            ..injected()
        };
        let rules = chain(&settings, "nat-output");
        assert_eq!(rules[..2], ["tcp dport 3306 accept", "udp dport 3306 accept"]);
        let last = [
            "ip6 daddr ::1 accept",
            "ip daddr 10.1.0.0/16 accept",
            "tcp dport 9000 redirect to :15001",
            "ip daddr 10.0.0.0/8 meta l4proto tcp redirect to :15001",
            "ip6 daddr fd00::/8 meta l4proto tcp redirect to :15001",
        ];
        assert_eq!(rules[rules.len() - last.len()..], last);
    }

    #[test]
    fn ranges_of_ipv6_need_ipv6() {
        let range = "fd00::/8".parse().expect("a range");
        let settings = Settings { outbound_ranges: Included::Only(vec![range]), ..injected() };
        assert!(!rules(&settings).to_string().contains("fd00"));
    }

    #[test]
    fn dns_requests_of_the_proxy_are_not_redirected() {
        let settings = Settings { dns: DnsCapture::All, ..injected() };
        let rules = chain(&settings, "nat-output");
        let position =
            |text: &str| rules.iter().position(|rule| rule == text).unwrap_or_else(|| panic!("{text}: {rules:?}"));
        assert!(position("meta skgid 1337 accept") < position("udp dport 53 redirect to :15053"));
        assert!(position("tcp dport 53 redirect to :15053") < position("ip daddr 127.0.0.1/32 accept"));
        assert_eq!(chain(&settings, "raw-output").last().map(String::as_str), Some("udp dport 53 ct zone set 2"));
        let servers = DnsCapture::Servers(vec!["10.96.0.10".parse().expect("an address")]);
        let rules = chain(&Settings { dns: servers, ..injected() }, "nat-output");
        assert!(rules.contains(&"ip daddr 10.96.0.10 udp dport 53 redirect to :15053".to_owned()), "{rules:?}");
    }

    #[test]
    fn tproxy_keeps_the_source_and_does_not_change_destinations() {
        let settings = Settings { interception: Interception::Tproxy, drop_invalid: true, ..injected() };
        let arriving = chain(&settings, "mangle-prerouting");
        assert_eq!(arriving[0], "ct state invalid drop");
        let last = [
            "ip daddr != 127.0.0.1/32 meta l4proto tcp meta mark set 1337 tproxy to :15006 accept",
            "ip daddr != 127.0.0.1/32 meta l4proto tcp drop",
        ];
        assert_eq!(arriving[arriving.len() - 2..], last);
        assert!(chain(&settings, "nat-prerouting").is_empty());
    }

    #[test]
    fn only_included_groups_are_redirected() {
        let group: Owner = "app".parse().expect("a group");
        let settings = Settings { owner_groups: Groups::Only(vec![group, Owner::id(7)]), ..injected() };
        let rules = chain(&settings, "nat-output");
        assert!(rules.contains(&"meta skgid != \"app\" meta skgid != 7 accept".to_owned()), "{rules:?}");
    }
}
