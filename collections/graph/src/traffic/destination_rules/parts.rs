//! The parts of rules that resources other than clusters read.
//!
//! Most changes of a rule concern its clusters only. An index has the rules without the fields that its readers do not read,
//! so that such a change ends there. A rule without any such field is left out, unless its host overlaps that of a rule with
//! one: only then does it matter which of them has precedence.

use sluice_engine::{Collection, Index};
use sluice_model::{
    ClientTls, ConnectionPool, DestinationRule, Host, LoadBalancer, ObjectKey, PortTrafficPolicy, Subset, TcpSettings,
    TrafficPolicy,
};

use crate::host_patterns::covering_hosts;

/// DestinationRules by host as declared, wildcards included.
pub(crate) type RuleIndex<'s> = Index<'s, Host, ObjectKey, DestinationRule>;

/// DestinationRules by host, as a whole and by parts.
#[derive(Clone)]
pub(crate) struct RuleIndexes<'s> {
    /// All fields.
    pub(crate) whole: RuleIndex<'s>,
    /// With consistent hashing, for routes.
    pub(crate) hashing: RuleIndex<'s>,
    /// With what applies to connections through listeners.
    pub(crate) connections: RuleIndex<'s>,
    /// With what selects and orders endpoints.
    pub(crate) endpoints: RuleIndex<'s>,
}

impl<'s> RuleIndexes<'s> {
    pub(crate) fn new(rules: &Collection<'s, ObjectKey, DestinationRule>) -> Self {
        let part = |part: Part| part.index(rules);
        Self {
            whole: by_host(rules, "destination_rules/by-host"),
            hashing: part(Part {
                name: "hashing",
                labels: false,
                of_policy: hashing,
                has_content: |rule| policies(rule).any(|of| hashes(&of)),
            }),
            // Resources have the names of subsets.
            connections: part(Part {
                name: "connections",
                labels: false,
                of_policy: connections,
                has_content: |rule| {
                    !rule.subsets.is_empty() || policies(rule).any(|of| hashes(&of) || limits_connections(&of))
                },
            }),
            endpoints: part(Part {
                name: "endpoints",
                labels: true,
                of_policy: endpoints,
                has_content: |rule| !rule.subsets.is_empty() || policies(rule).any(|of| selects_endpoints(&of)),
            }),
        }
    }
}

fn by_host<'s>(rules: &Collection<'s, ObjectKey, DestinationRule>, name: &str) -> RuleIndex<'s> {
    rules.index(name, |_, rule| [(rule.host.clone(), rule.clone())])
}

/// A part of rules.
struct Part {
    name: &'static str,
    /// The labels of subsets belong to it.
    labels: bool,
    of_policy: fn(&TrafficPolicy) -> TrafficPolicy,
    /// Whether such a part of a rule has an effect where no other rule applies.
    has_content: fn(&DestinationRule) -> bool,
}

impl Part {
    /// The part of each rule by host, without the rules that have no effect on it.
    fn index<'s>(&self, rules: &Collection<'s, ObjectKey, DestinationRule>) -> RuleIndex<'s> {
        let Self { labels, of_policy, has_content, .. } = *self;
        let name = |suffix: &str| format!("destination_rules/{}{suffix}", self.name);
        let parts = rules.map(&name(""), move |_, rule| with_policies(rule, labels, of_policy));
        let with_content = parts.filter(&name("-with-content"), move |_, rule| has_content(rule));
        let hosts = with_content.index(&name("-hosts"), |_, rule| [(rule.host.clone(), ())]);
        let hosts = hosts.distinct(&name("-distinct-hosts"));
        let covering = with_content.index(&name("-covering-hosts"), |_, rule| {
            covering_hosts(&rule.host).map(|host| (host, ())).collect::<Vec<_>>()
        });
        let covering = covering.distinct(&name("-distinct-covering-hosts"));
        let relevant = parts.derive(&name("-relevant"), |deps| {
            let (hosts, covering) = (deps.on(&hosts), deps.on(&covering));
            move |cx, _, rule| {
                let covers = cx.get(&covering, &rule.host).is_some();
                let is_relevant = covers || covering_hosts(&rule.host).any(|host| cx.get(&hosts, &host).is_some());
                is_relevant.then(|| rule.clone())
            }
        });
        by_host(&relevant, &name("-by-host"))
    }
}

/// The policies of a rule and of its subsets, and those for ports.
fn policies(rule: &DestinationRule) -> impl Iterator<Item = TrafficPolicy> {
    rule.policies().flat_map(|policy| {
        std::iter::once(policy.clone()).chain(policy.port_level.iter().map(PortTrafficPolicy::as_policy))
    })
}

fn hashes(policy: &TrafficPolicy) -> bool {
    policy.load_balancer.as_ref().is_some_and(|balancer| balancer.consistent_hash.is_some())
}

fn limits_connections(policy: &TrafficPolicy) -> bool {
    let tcp = policy.connection_pool.as_ref().and_then(|pool| pool.tcp.as_ref());
    policy.tunnel.is_some() || tcp.is_some_and(|tcp| *tcp != TcpSettings::default())
}

fn selects_endpoints(policy: &TrafficPolicy) -> bool {
    policy.load_balancer.is_some() || policy.outlier_detection.is_some() || policy.tls.is_some()
}

/// The rule with these parts of its policies. Subsets keep their names, because an older rule takes precedence by name.
fn with_policies(rule: &DestinationRule, labels: bool, part: fn(&TrafficPolicy) -> TrafficPolicy) -> DestinationRule {
    let of_level = |level: &PortTrafficPolicy| {
        let TrafficPolicy { load_balancer, connection_pool, outlier_detection, tls, .. } = part(&level.as_policy());
        PortTrafficPolicy { port: level.port, load_balancer, connection_pool, outlier_detection, tls }
    };
    let of_policy = |policy: &TrafficPolicy| TrafficPolicy {
        port_level: policy.port_level.iter().map(of_level).collect(),
        ..part(policy)
    };
    let of_subset = |subset: &Subset| Subset {
        name: subset.name.clone(),
        labels: if labels { subset.labels.clone() } else { Default::default() },
        traffic_policy: subset.traffic_policy.as_deref().map(of_policy).map(Box::new),
    };
    DestinationRule {
        namespace: rule.namespace.clone(),
        name: rule.name.clone(),
        created: rule.created,
        host: rule.host.clone(),
        traffic_policy: rule.traffic_policy.as_ref().map(of_policy),
        subsets: rule.subsets.iter().map(of_subset).collect(),
        export_to: rule.export_to.clone(),
        workload_selector: rule.workload_selector.clone(),
        of_backend_policy: rule.of_backend_policy,
    }
}

/// A present field stays present, also without values: it overrides that of a subset's rule.
fn hashing(policy: &TrafficPolicy) -> TrafficPolicy {
    let hash_of = |balancer: &LoadBalancer| LoadBalancer {
        consistent_hash: balancer.consistent_hash.clone(),
        ..LoadBalancer::default()
    };
    TrafficPolicy { load_balancer: policy.load_balancer.as_ref().map(hash_of), ..TrafficPolicy::default() }
}

fn connections(policy: &TrafficPolicy) -> TrafficPolicy {
    let of_tcp = |tcp: &TcpSettings| TcpSettings {
        idle_timeout: tcp.idle_timeout,
        max_connection_duration: tcp.max_connection_duration,
        ..TcpSettings::default()
    };
    let of_pool = |pool: &ConnectionPool| ConnectionPool { tcp: pool.tcp.as_ref().map(of_tcp), http: None };
    TrafficPolicy {
        connection_pool: policy.connection_pool.as_ref().map(of_pool),
        tunnel: policy.tunnel.clone(),
        ..hashing(policy)
    }
}

fn endpoints(policy: &TrafficPolicy) -> TrafficPolicy {
    let of_tls = |tls: &ClientTls| ClientTls { mode: tls.mode, ..ClientTls::default() };
    TrafficPolicy {
        load_balancer: policy.load_balancer.clone(),
        outlier_detection: policy.outlier_detection.clone(),
        tls: policy.tls.as_ref().map(of_tls),
        ..TrafficPolicy::default()
    }
}
