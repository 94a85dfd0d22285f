//! Redirection of a pod of the ambient mesh to ztunnel, which listens in the network namespace of the pod.
//!
//! Marks, ports, addresses and the order of the rules are those of `cni/pkg/iptables` of Istio, because ztunnel depends on
//! them: it marks its own packets with [`ZTUNNEL_MARK`].

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::apply::{self, ApplyError, MarkRoute};
use crate::ruleset::{Hook, Ruleset};
use crate::values::Interface;
use crate::{DNS_PORT, INBOUND_PORT, OUTBOUND_PORT, TUNNEL_PORT};

/// The table in the namespace of a pod.
pub const TABLE: &str = "istio-ambient";
/// The mark of packets that ztunnel sends.
pub const ZTUNNEL_MARK: u32 = 0x539;
/// The mark of connections of ztunnel, and of the packets that answer them.
pub const CONNECTION_MARK: u32 = 0x111;
/// The bits of a mark that belong to the mesh.
pub const MARK_MASK: u32 = 0xfff;
/// Source of the kubelet's probes, as pods see them.
pub const PROBE_ADDRESS_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 7, 127);
/// The same for IPv6.
pub const PROBE_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff);

/// Packets that answer ztunnel are delivered to it, although their destination is not an address of the pod.
const ROUTE: MarkRoute =
    MarkRoute { mark: CONNECTION_MARK, mask: Some(MARK_MASK), preference: Some(32764), table: 100 };

/// Connections that a pod had open before it was enrolled. The kernel takes their next packet for the first one of a connection and
/// would redirect it. Istio's agent has no such rule: it breaks these connections.
const OPEN_CONNECTION: &str = "meta l4proto tcp tcp flags & (fin | syn | rst | ack) != syn accept";

/// New connections that pass the redirection because the kernel tracks them already: a peer may have sent a packet before that
/// [`OPEN_CONNECTION`] accepts, or the pod was withdrawn for a while. They would reach the application past all policies.
const NOT_REDIRECTED: &str = "tcp flags & (fin | syn | rst | ack) == syn ct status & dnat == 0";

/// Settings of a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeSettings {
    /// Also redirect IPv6.
    pub ipv6: bool,
    /// Redirect DNS requests, unless the pod says otherwise.
    pub dns_capture: bool,
    /// Source of probes.
    pub probe_v4: Ipv4Addr,
    /// Source of probes over IPv6.
    pub probe_v6: Ipv6Addr,
}

impl Default for NodeSettings {
    /// IPv6 and DNS, and Istio's addresses.
    fn default() -> Self {
        Self { ipv6: true, dns_capture: true, probe_v4: PROBE_ADDRESS_V4, probe_v6: PROBE_ADDRESS_V6 }
    }
}

/// Settings of a pod, from its annotations.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PodSettings {
    /// Inbound traffic is not redirected (`ambient.istio.io/bypass-inbound-capture`).
    pub bypass_inbound: bool,
    /// Redirect DNS requests (`ambient.istio.io/dns-capture`); `None` is the setting of the node.
    pub dns_capture: Option<bool>,
    /// Traffic from these interfaces is outbound traffic (`istio.io/reroute-virtual-interfaces`).
    pub virtual_interfaces: Vec<Interface>,
}

/// The rules of a pod.
#[must_use]
pub fn rules(node: &NodeSettings, pod: &PodSettings) -> Ruleset {
    let mut rules = Ruleset::new(TABLE, node.ipv6);
    let dns = pod.dns_capture.unwrap_or(node.dns_capture);
    ztunnel_rules(&mut rules, dns);
    for hook in [Hook::NatPrerouting, Hook::NatOutput] {
        rules.rule(hook, OPEN_CONNECTION);
    }
    inbound_rules(&mut rules, node, pod);
    outbound_rules(&mut rules, node, dns);
    rules
}

/// The rules of a pod that is withdrawn while ztunnel still serves its open connections and tunnels.
#[must_use]
pub fn draining_rules(node: &NodeSettings, pod: &PodSettings) -> Ruleset {
    let mut rules = Ruleset::new(TABLE, node.ipv6);
    ztunnel_rules(&mut rules, pod.dns_capture.unwrap_or(node.dns_capture));
    // Without a chain for NAT, the kernel does not translate packets of open connections either.
    for hook in [Hook::NatPrerouting, Hook::NatOutput] {
        rules.rule(hook, "accept");
    }
    rules
}

fn ours() -> String {
    format!("meta mark & {MARK_MASK:#x} == {ZTUNNEL_MARK:#x}")
}

fn not_ours() -> String {
    format!("meta mark & {MARK_MASK:#x} != {ZTUNNEL_MARK:#x}")
}

/// Marks connections of ztunnel, and the packets that answer them.
fn ztunnel_rules(rules: &mut Ruleset, dns: bool) {
    let (ours, not_ours) = (ours(), not_ours());
    if dns {
        // Queries of ztunnel and of the application may have the same ports: each has a zone of its own.
        rules.rule(Hook::RawPrerouting, format!("udp sport 53 {not_ours} ct zone set 1"));
        rules.rule(Hook::RawOutput, format!("udp dport 53 {ours} ct zone set 1"));
    }
    let others = !MARK_MASK;
    let mark = format!("{ours} ct mark set ct mark & {others:#x} | {CONNECTION_MARK:#x}");
    rules.rule(Hook::ManglePrerouting, mark);
    rules.rule(Hook::MangleOutput, format!("ct mark & {MARK_MASK:#x} == {CONNECTION_MARK:#x} meta mark set ct mark"));
}

fn inbound_rules(rules: &mut Ruleset, node: &NodeSettings, pod: &PodSettings) {
    const NAT: Hook = Hook::NatPrerouting;
    let not_ours = not_ours();
    for interface in &pod.virtual_interfaces {
        rules.rule(NAT, format!("iifname \"{interface}\" meta l4proto tcp redirect to :{OUTBOUND_PORT}"));
    }
    if pod.bypass_inbound {
        return;
    }
    let probe = "{ip} saddr {address} meta l4proto tcp accept";
    rules.versioned_rule(NAT, probe, &node.probe_v4.to_string(), &node.probe_v6.to_string());
    let redirect =
        format!("{{ip}} daddr != {{address}} tcp dport != {TUNNEL_PORT} {not_ours} redirect to :{INBOUND_PORT}");
    rules.versioned_rule(NAT, &redirect, "127.0.0.1", "::1");
    let rest = format!(
        "{{ip}} saddr != {{address}} iifname != \"lo\" tcp dport != {{ {INBOUND_PORT}, {TUNNEL_PORT} }} {not_ours} {NOT_REDIRECTED} drop"
    );
    rules.versioned_rule(Hook::FilterInput, &rest, &node.probe_v4.to_string(), &node.probe_v6.to_string());
}

fn outbound_rules(rules: &mut Ruleset, node: &NodeSettings, dns: bool) {
    const NAT: Hook = Hook::NatOutput;
    let not_ours = not_ours();
    let probe = "{ip} daddr {address} meta l4proto tcp accept";
    rules.versioned_rule(NAT, probe, &node.probe_v4.to_string(), &node.probe_v6.to_string());
    if dns {
        rules.rule(NAT, format!("oifname != \"lo\" udp dport 53 {not_ours} redirect to :{DNS_PORT}"));
        let redirect = format!("{{ip}} daddr != {{address}} tcp dport 53 {not_ours} redirect to :{DNS_PORT}");
        rules.versioned_rule(NAT, &redirect, "127.0.0.1", "::1");
    }
    rules.rule(NAT, format!("meta l4proto tcp meta mark & {MARK_MASK:#x} == {CONNECTION_MARK:#x} accept"));
    // A connection of the application to its own address does not leave the pod.
    rules.versioned_rule(NAT, "{ip} daddr != {address} oifname \"lo\" accept", "127.0.0.1", "::1");
    let redirect = format!("{{ip}} daddr != {{address}} meta l4proto tcp {not_ours} redirect to :{OUTBOUND_PORT}");
    rules.versioned_rule(NAT, &redirect, "127.0.0.1", "::1");
}

/// Redirects the traffic of the pod whose network namespace the calling thread is in. A repeated call replaces the rules.
///
/// # Errors
/// `nft` or `ip` fails. The rules of an earlier call are then still in effect.
pub fn enrol(node: &NodeSettings, pod: &PodSettings) -> Result<(), ApplyError> {
    replace(node, &rules(node, pod))
}

/// Ends the redirection of new connections after [`enrol`]. Open connections of ztunnel continue until [`withdraw`], and new
/// tunnels reach it.
///
/// # Errors
/// As [`enrol`].
pub fn drain(node: &NodeSettings, pod: &PodSettings) -> Result<(), ApplyError> {
    replace(node, &draining_rules(node, pod))
}

fn replace(node: &NodeSettings, rules: &Ruleset) -> Result<(), ApplyError> {
    ROUTE.add(node.ipv6)?;
    apply::nft(&rules.to_string())?;
    apply::remove_iptables(&IPTABLES_CHAINS);
    Ok(())
}

/// Removes what [`enrol`] and [`drain`] have added in the namespace of the calling thread.
///
/// # Errors
/// `nft` or `ip` fails.
pub fn withdraw() -> Result<(), ApplyError> {
    apply::remove_table(TABLE)?;
    apply::remove_iptables(&IPTABLES_CHAINS);
    ROUTE.remove()
}

/// The chains of Istio's plugin, which may have enrolled the pod before: table, built-in chain, chain.
const IPTABLES_CHAINS: [apply::IptablesChain; 6] = [
    ("mangle", "PREROUTING", "ISTIO_PRERT"),
    ("mangle", "OUTPUT", "ISTIO_OUTPUT"),
    ("nat", "PREROUTING", "ISTIO_PRERT"),
    ("nat", "OUTPUT", "ISTIO_OUTPUT"),
    ("raw", "PREROUTING", "ISTIO_PRERT"),
    ("raw", "OUTPUT", "ISTIO_OUTPUT"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn text(node: &NodeSettings, pod: &PodSettings) -> String {
        rules(node, pod).to_string()
    }

    #[test]
    fn default_rules_have_ports_marks_and_order_of_istio() {
        let expected = r#"add table ip istio-ambient
delete table ip istio-ambient
add table inet istio-ambient
delete table inet istio-ambient
table inet istio-ambient {
	chain raw-prerouting {
		type filter hook prerouting priority -300; policy accept;
		udp sport 53 meta mark & 0xfff != 0x539 ct zone set 1
	}
	chain raw-output {
		type filter hook output priority -300; policy accept;
		udp dport 53 meta mark & 0xfff == 0x539 ct zone set 1
	}
	chain mangle-prerouting {
		type filter hook prerouting priority -150; policy accept;
		meta mark & 0xfff == 0x539 ct mark set ct mark & 0xfffff000 | 0x111
	}
	chain mangle-output {
		type route hook output priority -150; policy accept;
		ct mark & 0xfff == 0x111 meta mark set ct mark
	}
	chain nat-prerouting {
		type nat hook prerouting priority -100; policy accept;
		meta l4proto tcp tcp flags & (fin | syn | rst | ack) != syn accept
		ip saddr 169.254.7.127 meta l4proto tcp accept
		ip6 saddr fd16:9254:7127:1337:ffff:ffff:ffff:ffff meta l4proto tcp accept
		ip daddr != 127.0.0.1 tcp dport != 15008 meta mark & 0xfff != 0x539 redirect to :15006
		ip6 daddr != ::1 tcp dport != 15008 meta mark & 0xfff != 0x539 redirect to :15006
	}
	chain nat-output {
		type nat hook output priority -100; policy accept;
		meta l4proto tcp tcp flags & (fin | syn | rst | ack) != syn accept
		ip daddr 169.254.7.127 meta l4proto tcp accept
		ip6 daddr fd16:9254:7127:1337:ffff:ffff:ffff:ffff meta l4proto tcp accept
		oifname != "lo" udp dport 53 meta mark & 0xfff != 0x539 redirect to :15053
		ip daddr != 127.0.0.1 tcp dport 53 meta mark & 0xfff != 0x539 redirect to :15053
		ip6 daddr != ::1 tcp dport 53 meta mark & 0xfff != 0x539 redirect to :15053
		meta l4proto tcp meta mark & 0xfff == 0x111 accept
		ip daddr != 127.0.0.1 oifname "lo" accept
		ip6 daddr != ::1 oifname "lo" accept
		ip daddr != 127.0.0.1 meta l4proto tcp meta mark & 0xfff != 0x539 redirect to :15001
		ip6 daddr != ::1 meta l4proto tcp meta mark & 0xfff != 0x539 redirect to :15001
	}
	chain filter-input {
		type filter hook input priority 0; policy accept;
		ip saddr != 169.254.7.127 iifname != "lo" tcp dport != { 15006, 15008 } meta mark & 0xfff != 0x539 tcp flags & (fin | syn | rst | ack) == syn ct status & dnat == 0 drop
		ip6 saddr != fd16:9254:7127:1337:ffff:ffff:ffff:ffff iifname != "lo" tcp dport != { 15006, 15008 } meta mark & 0xfff != 0x539 tcp flags & (fin | syn | rst | ack) == syn ct status & dnat == 0 drop
	}
}
"#;
        assert_eq!(text(&NodeSettings::default(), &PodSettings::default()), expected);
    }

    #[test]
    fn pod_overrides_dns_capture_and_bypasses_inbound() {
        let node = NodeSettings { ipv6: false, ..NodeSettings::default() };
        let pod = PodSettings {
            bypass_inbound: true,
            dns_capture: Some(false),
            virtual_interfaces: vec!["virt+".parse().expect("an interface")],
        };
        let text = text(&node, &pod);
        assert!(text.contains("table ip istio-ambient {"), "{text}");
        assert!(!text.contains(":15053") && !text.contains("ct zone") && !text.contains("ip6"), "{text}");
        assert!(!text.contains(":15006"), "{text}");
        assert!(text.contains("iifname \"virt*\" meta l4proto tcp redirect to :15001"), "{text}");
    }
}
