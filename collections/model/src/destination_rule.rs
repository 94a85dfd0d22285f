//! DestinationRules: policies for the clients of a host (N14, N15).

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    ClientTls, ClientTlsMode, ConnectionPool, Decimal, Host, Labels, LoadBalancer, OutlierDetection, SimpleLb, Text,
    Timestamp,
};

/// The policy of clients for a service, or for a port or subset of it (N14).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TrafficPolicy {
    /// Load balancing.
    pub load_balancer: Option<LoadBalancer>,
    /// Limits and timeouts of connections.
    pub connection_pool: Option<ConnectionPool>,
    /// Outlier detection.
    pub outlier_detection: Option<OutlierDetection>,
    /// TLS towards the service.
    pub tls: Option<ClientTls>,
    /// Policies of single ports, in declared order; each replaces all of the above.
    pub port_level: Vec<PortTrafficPolicy>,
    /// TCP over HTTP CONNECT or POST.
    pub tunnel: Option<Tunnel>,
    /// PROXY protocol version, 1 or 2.
    pub proxy_protocol: Option<u8>,
    /// Limit of concurrent retries.
    pub retry_budget: Option<RetryBudget>,
}

/// The policy of one port. It inherits nothing from the policy it is part of.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct PortTrafficPolicy {
    /// The service's port.
    pub port: u32,
    /// See [`TrafficPolicy`].
    pub load_balancer: Option<LoadBalancer>,
    /// See [`TrafficPolicy`].
    pub connection_pool: Option<ConnectionPool>,
    /// See [`TrafficPolicy`].
    pub outlier_detection: Option<OutlierDetection>,
    /// See [`TrafficPolicy`].
    pub tls: Option<ClientTls>,
}

/// Limit of concurrent retries, relative to active requests.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct RetryBudget {
    /// Percent of active requests; 20 unless set.
    pub percent: Option<Decimal>,
    /// At least this many; 3 if 0.
    pub min_retry_concurrency: u32,
    /// Interval over which requests are counted.
    pub budget_interval: Option<Duration>,
}

/// TCP over HTTP.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Tunnel {
    /// `CONNECT` (if empty) or `POST`.
    pub protocol: Text,
    /// Target host.
    pub target_host: Text,
    /// Target port.
    pub target_port: u32,
}

impl PortTrafficPolicy {
    /// The policy of a port, as that of all ports.
    #[must_use]
    pub fn as_policy(&self) -> TrafficPolicy {
        TrafficPolicy {
            load_balancer: self.load_balancer.clone(),
            connection_pool: self.connection_pool.clone(),
            outlier_detection: self.outlier_detection.clone(),
            tls: self.tls.clone(),
            ..TrafficPolicy::default()
        }
    }
}

impl TrafficPolicy {
    /// The settings of one port, and whether they are port-level settings, which inherit nothing.
    #[must_use]
    pub fn for_port(&self, port: u16) -> (Self, bool) {
        match self.port_level.iter().find(|p| p.port == u32::from(port)) {
            Some(level) => (level.as_policy(), true),
            None => (self.clone(), false),
        }
    }

    /// The settings of one port of a subset: those of the subset over those of the rule; port-level settings replace
    /// both.
    #[must_use]
    pub fn merged(rule: Option<&Self>, subset: Option<&Self>, port: u16) -> Option<Self> {
        let base = rule.map(|policy| policy.for_port(port).0);
        let Some(subset) = subset else { return base };
        let (subset, port_level) = subset.for_port(port);
        let Some(base) = base else { return Some(subset) };
        let over = |has: bool| has || port_level;
        Some(Self {
            connection_pool: if over(subset.connection_pool.is_some()) {
                subset.connection_pool
            } else {
                base.connection_pool
            },
            outlier_detection: if over(subset.outlier_detection.is_some()) {
                subset.outlier_detection
            } else {
                base.outlier_detection
            },
            load_balancer: if over(subset.load_balancer.is_some()) { subset.load_balancer } else { base.load_balancer },
            tls: if over(subset.tls.is_some()) { subset.tls } else { base.tls },
            port_level: Vec::new(),
            tunnel: subset.tunnel.or(base.tunnel),
            proxy_protocol: subset.proxy_protocol.or(base.proxy_protocol),
            retry_budget: subset.retry_budget.or(base.retry_budget),
        })
    }

    /// These settings, with `other` for those that are unset. Port-level settings are merged in the same way.
    #[must_use]
    pub fn merged_over(&self, other: &Self) -> Self {
        let mut port_level = self.port_level.clone();
        for below in &other.port_level {
            match port_level.iter_mut().find(|level| level.port == below.port) {
                Some(level) => {
                    level.load_balancer = level.load_balancer.take().or_else(|| below.load_balancer.clone());
                    level.connection_pool = level.connection_pool.take().or_else(|| below.connection_pool.clone());
                    level.outlier_detection =
                        level.outlier_detection.take().or_else(|| below.outlier_detection.clone());
                    level.tls = level.tls.take().or_else(|| below.tls.clone());
                }
                None => port_level.push(below.clone()),
            }
        }
        let (own, other) = (self.clone(), other.clone());
        Self {
            load_balancer: own.load_balancer.or(other.load_balancer),
            connection_pool: own.connection_pool.or(other.connection_pool),
            outlier_detection: own.outlier_detection.or(other.outlier_detection),
            tls: own.tls.or(other.tls),
            port_level,
            tunnel: own.tunnel.or(other.tunnel),
            proxy_protocol: own.proxy_protocol.or(other.proxy_protocol),
            retry_budget: own.retry_budget.or(other.retry_budget),
        }
    }

    /// Whether requests go to the address that the client connected to.
    #[must_use]
    pub fn is_passthrough(&self) -> bool {
        self.load_balancer.as_ref().is_some_and(|lb| lb.simple == SimpleLb::Passthrough)
    }

    /// The TLS mode of a port, if one is declared.
    #[must_use]
    pub fn tls_mode(&self, port: u16) -> Option<ClientTlsMode> {
        self.port_level
            .iter()
            .filter(|level| level.port == u32::from(port))
            .find_map(|level| level.tls.as_ref())
            .or(self.tls.as_ref())
            .map(|tls| tls.mode)
    }
}
/// A named part of a service's endpoints.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Subset {
    /// Its name.
    pub name: Text,
    /// Labels of its endpoints.
    pub labels: Labels,
    /// Overrides of the rule's policy.
    pub traffic_policy: Option<Box<TrafficPolicy>>,
}

/// A DestinationRule.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct DestinationRule {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older wins.
    pub created: Timestamp,
    /// The host that it applies to, resolved to a full name; may be a wildcard.
    pub host: Host,
    /// The policy of all subsets and ports.
    pub traffic_policy: Option<TrafficPolicy>,
    /// Subsets in declared order.
    pub subsets: Vec<Subset>,
    /// `exportTo` as declared: `.`, `*`, `~` or namespaces; empty is the default of the mesh.
    pub export_to: BTreeSet<Text>,
    /// Client workloads of its namespace that it applies to. The empty selector is all of that namespace, `None` is all
    /// clients.
    pub workload_selector: Option<Labels>,
    /// It is derived from policies of the Gateway API. A declared rule for the same host takes precedence.
    pub of_backend_policy: bool,
}

impl DestinationRule {
    /// The subset with that name.
    #[must_use]
    pub fn subset(&self, name: &str) -> Option<&Subset> {
        self.subsets.iter().find(|subset| subset.name == name)
    }

    /// The policy for a port of a subset; an empty subset name is the whole service.
    #[must_use]
    pub fn policy(&self, subset: &str, port: u16) -> Option<TrafficPolicy> {
        let subset = if subset.is_empty() { None } else { self.subset(subset) };
        TrafficPolicy::merged(self.traffic_policy.as_ref(), subset.and_then(|s| s.traffic_policy.as_deref()), port)
    }

    /// The TLS mode of clients for a port of a subset, if the rule declares one.
    #[must_use]
    pub fn tls_mode(&self, subset: &str, port: u16) -> Option<ClientTlsMode> {
        let of_rule = || self.traffic_policy.as_ref().and_then(|policy| policy.tls_mode(port));
        if subset.is_empty() {
            return of_rule();
        }
        let subset = self.subset(subset)?;
        subset.traffic_policy.as_ref().and_then(|policy| policy.tls_mode(port)).or_else(of_rule)
    }

    /// The policy of the rule and those of its subsets.
    pub fn policies(&self) -> impl Iterator<Item = &TrafficPolicy> {
        let of_subsets = self.subsets.iter().filter_map(|subset| subset.traffic_policy.as_deref());
        self.traffic_policy.iter().chain(of_subsets)
    }

    /// Whether clients of the service or of a subset send to the address that they connected to.
    #[must_use]
    pub fn uses_passthrough(&self) -> bool {
        self.policies().any(TrafficPolicy::is_passthrough)
    }

    /// Whether the rule declares a credential. Those of the Gateway API are left out: all authenticated proxies receive them.
    #[must_use]
    pub fn names_credentials(&self) -> bool {
        let names = |tls: &Option<ClientTls>| tls.as_ref().is_some_and(|tls| tls.credential.name().is_some());
        !self.of_backend_policy
            && self
                .policies()
                .any(|policy| names(&policy.tls) || policy.port_level.iter().any(|level| names(&level.tls)))
    }

    /// Merges a younger rule for the same host: adds its subsets, and its policy if this rule has none.
    pub fn merge_younger(&mut self, younger: &Self) {
        for subset in &younger.subsets {
            if self.subset(&subset.name).is_none() {
                self.subsets.push(subset.clone());
            }
        }
        match (&self.traffic_policy, &younger.traffic_policy) {
            (Some(own), Some(other)) if self.of_backend_policy && !younger.of_backend_policy => {
                self.traffic_policy = Some(other.merged_over(own));
                self.of_backend_policy = false;
            }
            (Some(own), Some(other)) if younger.of_backend_policy && !self.of_backend_policy => {
                self.traffic_policy = Some(own.merged_over(other));
            }
            (Some(_), _) => {}
            (None, _) => self.traffic_policy.clone_from(&younger.traffic_policy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DestinationRule, PortTrafficPolicy, RetryBudget, Subset, TrafficPolicy};
    use crate::{ClientTls, ClientTlsMode, ConnectionPool, LoadBalancer, SimpleLb};

    fn tls(mode: ClientTlsMode) -> Option<ClientTls> {
        Some(ClientTls { mode, ..ClientTls::default() })
    }

    fn lb(simple: SimpleLb) -> Option<LoadBalancer> {
        Some(LoadBalancer { simple, ..LoadBalancer::default() })
    }

    fn rule() -> DestinationRule {
        DestinationRule {
            traffic_policy: Some(TrafficPolicy {
                load_balancer: lb(SimpleLb::Random),
                tls: tls(ClientTlsMode::Simple),
                proxy_protocol: Some(2),
                port_level: vec![PortTrafficPolicy {
                    port: 80,
                    connection_pool: Some(ConnectionPool::default()),
                    ..PortTrafficPolicy::default()
                }],
                ..TrafficPolicy::default()
            }),
            subsets: vec![
                Subset { name: "plain".into(), ..Subset::default() },
                Subset {
                    name: "own".into(),
                    traffic_policy: Some(Box::new(TrafficPolicy {
                        load_balancer: lb(SimpleLb::RoundRobin),
                        port_level: vec![PortTrafficPolicy {
                            port: 90,
                            tls: tls(ClientTlsMode::Disable),
                            ..PortTrafficPolicy::default()
                        }],
                        ..TrafficPolicy::default()
                    })),
                    ..Subset::default()
                },
            ],
            ..DestinationRule::default()
        }
    }

    #[test]
    fn a_port_level_policy_inherits_nothing() {
        let policy = rule().policy("", 80).unwrap();
        assert!(policy.load_balancer.is_none() && policy.tls.is_none() && policy.connection_pool.is_some());
        assert!(policy.proxy_protocol.is_none());
    }

    #[test]
    fn a_subset_overrides_what_it_sets() {
        let policy = rule().policy("own", 70).unwrap();
        assert_eq!(policy.load_balancer.unwrap().simple, SimpleLb::RoundRobin);
        assert_eq!(policy.tls.unwrap().mode, ClientTlsMode::Simple);
        let policy = rule().policy("own", 90).unwrap();
        assert!(policy.load_balancer.is_none(), "a subset's port level replaces the rule's settings");
        assert_eq!(policy.proxy_protocol, Some(2));
        assert_eq!(rule().policy("plain", 70), rule().policy("", 70));
    }

    #[test]
    fn the_tls_mode_falls_back_from_port_to_rule() {
        assert_eq!(rule().tls_mode("", 80), Some(ClientTlsMode::Simple));
        assert_eq!(rule().tls_mode("own", 90), Some(ClientTlsMode::Disable));
        assert_eq!(rule().tls_mode("own", 80), Some(ClientTlsMode::Simple));
        assert_eq!(rule().tls_mode("absent", 80), None);
    }

    #[test]
    fn the_older_rule_keeps_what_it_has() {
        let mut older = DestinationRule {
            subsets: vec![Subset { name: "own".into(), ..Subset::default() }],
            ..DestinationRule::default()
        };
        older.merge_younger(&rule());
        assert_eq!(older.subsets.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["own", "plain"]);
        assert!(older.subset("own").unwrap().traffic_policy.is_none());
        assert_eq!(older.traffic_policy, rule().traffic_policy);
    }

    #[test]
    fn a_policy_of_the_gateway_api_says_what_the_users_rule_does_not() {
        let of_backend = |policy| DestinationRule {
            traffic_policy: Some(policy),
            of_backend_policy: true,
            ..DestinationRule::default()
        };
        let port = |number| PortTrafficPolicy {
            port: number,
            tls: tls(ClientTlsMode::Mutual),
            ..PortTrafficPolicy::default()
        };
        let backend = of_backend(TrafficPolicy {
            tls: tls(ClientTlsMode::Mutual),
            retry_budget: Some(RetryBudget::default()),
            port_level: vec![port(80), port(443)],
            ..TrafficPolicy::default()
        });
        // In either order of age.
        let (mut users, mut backends) = (rule(), backend.clone());
        users.merge_younger(&backend);
        backends.merge_younger(&rule());
        for merged in [users, backends] {
            let policy = merged.traffic_policy.expect("a policy");
            assert_eq!(policy.tls, tls(ClientTlsMode::Simple), "the user's");
            assert!(policy.retry_budget.is_some(), "the backend's");
            let ports: Vec<_> = policy.port_level.iter().map(|p| (p.port, p.tls.is_some())).collect();
            assert_eq!(ports, [(80, true), (443, true)]);
            assert!(policy.port_level[0].connection_pool.is_some(), "the user's");
        }
    }
}
