//! Tables of nftables as text.

use std::fmt;

/// Where a chain is attached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Hook {
    /// Before connection tracking, for packets that arrive.
    RawPrerouting,
    /// Before connection tracking, for packets that are sent.
    RawOutput,
    /// Marks of packets that arrive.
    ManglePrerouting,
    /// Marks of packets that are sent. A changed mark routes the packet again.
    MangleOutput,
    /// Destinations of connections that arrive.
    NatPrerouting,
    /// Destinations of connections that are opened.
    NatOutput,
    /// Sources of connections that leave.
    NatPostrouting,
    /// Packets that are delivered to a socket, with their translated destinations.
    FilterInput,
}

impl Hook {
    fn name(self) -> &'static str {
        match self {
            Self::RawPrerouting => "raw-prerouting",
            Self::RawOutput => "raw-output",
            Self::ManglePrerouting => "mangle-prerouting",
            Self::MangleOutput => "mangle-output",
            Self::NatPrerouting => "nat-prerouting",
            Self::NatOutput => "nat-output",
            Self::NatPostrouting => "nat-postrouting",
            Self::FilterInput => "filter-input",
        }
    }

    /// Type, hook and priority, with the priorities of iptables. Names of priorities are not valid for every hook.
    fn declaration(self) -> &'static str {
        match self {
            Self::RawPrerouting => "type filter hook prerouting priority -300",
            Self::RawOutput => "type filter hook output priority -300",
            Self::ManglePrerouting => "type filter hook prerouting priority -150",
            Self::MangleOutput => "type route hook output priority -150",
            Self::NatPrerouting => "type nat hook prerouting priority -100",
            Self::NatOutput => "type nat hook output priority -100",
            Self::NatPostrouting => "type nat hook postrouting priority 100",
            Self::FilterInput => "type filter hook input priority 0",
        }
    }
}

/// One table of nftables. Its text, as input of `nft -f`, replaces the table as a whole.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ruleset {
    table: &'static str,
    ipv6: bool,
    /// Text of named sets.
    sets: Vec<String>,
    chains: Vec<(Hook, Vec<String>)>,
}

impl Ruleset {
    /// An empty table for IPv4, and for IPv6 as well if `ipv6`.
    pub(crate) fn new(table: &'static str, ipv6: bool) -> Self {
        Self { table, ipv6, sets: Vec::new(), chains: Vec::new() }
    }

    /// Whether the table also has rules for IPv6.
    pub(crate) fn ipv6(&self) -> bool {
        self.ipv6
    }

    /// Adds a named set.
    pub(crate) fn set(&mut self, text: String) {
        self.sets.push(text);
    }

    /// Appends a rule for both families.
    pub(crate) fn rule(&mut self, hook: Hook, rule: impl Into<String>) {
        let rule = rule.into();
        match self.chains.iter_mut().find(|(existing, _)| *existing == hook) {
            Some((_, rules)) => rules.push(rule),
            None => self.chains.push((hook, vec![rule])),
        }
    }

    /// Appends a rule for each family. `{ip}` becomes the name of the family, and `{address}` the address of the family.
    pub(crate) fn versioned_rule(&mut self, hook: Hook, rule: &str, v4: &str, v6: &str) {
        self.rule(hook, rule.replace("{ip}", "ip").replace("{address}", v4));
        if self.ipv6 {
            self.rule(hook, rule.replace("{ip}", "ip6").replace("{address}", v6));
        }
    }

    fn family(&self) -> &'static str {
        if self.ipv6 { "inet" } else { "ip" }
    }
}

/// The input of `nft` that removes a table, of either family, if it exists.
pub(crate) fn removal(table: &str) -> String {
    let mut text = String::new();
    for family in ["ip", "inet"] {
        // `delete` fails if the table does not exist, and `add` does nothing if it does.
        text.push_str(&format!("add table {family} {table}\ndelete table {family} {table}\n"));
    }
    text
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&removal(self.table))?;
        writeln!(f, "table {} {} {{", self.family(), self.table)?;
        for set in &self.sets {
            writeln!(f, "\t{set}")?;
        }
        for (hook, rules) in &self.chains {
            writeln!(f, "\tchain {} {{\n\t\t{}; policy accept;", hook.name(), hook.declaration())?;
            for rule in rules {
                writeln!(f, "\t\t{rule}")?;
            }
            f.write_str("\t}\n")?;
        }
        f.write_str("}\n")
    }
}
