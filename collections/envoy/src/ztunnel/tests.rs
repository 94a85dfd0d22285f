use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use prost::Message as _;
use sluice_model::{
    AmbientLoadBalancing, AmbientPort, AmbientService, AuthorizationCondition, AuthorizationOperation,
    AuthorizationPolicy, AuthorizationRule, AuthorizationSource, Host, Labels, Locality, ObjectKey, PeerAuthentication,
    PeerMtls, Pod, PolicyAction, PolicyValues, Protocol, ServiceSource, ServiceWaypoints, Text, TrafficDistribution,
};
use sluice_proto::istio::security::{Action, Authorization, Scope};
use sluice_proto::istio::workload::address::Type;
use sluice_proto::istio::workload::load_balancing::{HealthPolicy, Mode};
use sluice_proto::istio::workload::{Address, AppProtocol, Service, TunnelProtocol, Workload, WorkloadStatus};

use super::authorization::authorization;
use super::peer_authentication::peer_authorization;
use super::*;

fn service(source: ServiceSource) -> AmbientService {
    AmbientService {
        object: ObjectKey::new("c", "reef", "coral"),
        source,
        created: 0,
        host: Host::new("coral.reef.svc.cluster.local"),
        addresses: vec!["10.0.0.1/32".parse().expect("an address")],
        network: Text::default(),
        other_addresses: Vec::new(),
        global: false,
        ports: vec![
            AmbientPort {
                port: 80,
                name: "http".into(),
                protocol: Protocol::Http,
                target: 8080,
                ..AmbientPort::default()
            },
            AmbientPort { port: 90, name: "admin".into(), target_name: "console".into(), ..AmbientPort::default() },
        ],
        selector: Labels::new(),
        subject_alt_names: Vec::new(),
        waypoints: ServiceWaypoints::default(),
        balancing: AmbientLoadBalancing::Any,
        publish_not_ready: false,
        ip_families: None,
        canonical: true,
        private: false,
    }
}

fn decode_service(service: &AmbientService) -> Service {
    match Address::decode(build_service(service)).expect("an address").r#type {
        Some(Type::Service(service)) => service,
        other => panic!("{other:?}"),
    }
}

fn pod(ports: &[(&str, u16, &str)]) -> Pod {
    Pod {
        namespace: "reef".into(),
        name: "coral-1".into(),
        labels: Labels::new(),
        annotations: Labels::new(),
        created: 0,
        ips: vec!["10.1.0.1".into()],
        uid: Text::default(),
        node: Text::default(),
        service_account: "coral".into(),
        workload_name: "coral".into(),
        workload_kind: "Deployment".into(),
        ports: ports.iter().map(|(name, port, transport)| ((*name).into(), *port, (*transport).into())).collect(),
        host_network: false,
        ready: true,
        running: true,
        finished: false,
        terminating: false,
        hostname: Text::default(),
        subdomain: Text::default(),
    }
}

#[test]
fn named_target_ports_are_resolved() {
    let kubernetes = service(ServiceSource::Kubernetes);
    assert_eq!(pod_ports(&kubernetes, &pod(&[("console", 9, "UDP"), ("http", 7, "TCP")])), [(80, 8080)]);
    assert_eq!(pod_ports(&kubernetes, &pod(&[("console", 9, "TCP")])), [(80, 8080), (90, 9)]);
    let mut entry = service(ServiceSource::ServiceEntry);
    entry.ports.truncate(1);
    assert_eq!(pod_ports(&entry, &pod(&[("http", 7, "TCP")])), [(80, 7)]);
    assert_eq!(pod_ports(&entry, &pod(&[])), [(80, 8080)]);
    let named = |name: &str| BTreeMap::from([(Text::from(name), 5)]);
    assert_eq!(entry_ports(&kubernetes, &named("http")), [(80, 5)]);
    assert_eq!(entry_ports(&kubernetes, &named("console")), [(80, 8080), (90, 5)]);
}

#[test]
fn service_has_its_load_balancing() {
    let mut made = service(ServiceSource::Kubernetes);
    assert_eq!(decode_service(&made).load_balancing, None);
    made.balancing = AmbientLoadBalancing::Prefer(TrafficDistribution::PreferSameZone);
    let near = decode_service(&made).load_balancing.expect("a preference");
    assert_eq!((near.mode(), near.routing_preference.len()), (Mode::Failover, 3));
    made.balancing = AmbientLoadBalancing::SameNode;
    made.publish_not_ready = true;
    let own = decode_service(&made).load_balancing.expect("a rule");
    assert_eq!((own.mode(), own.health_policy()), (Mode::Strict, HealthPolicy::AllowAll));
    made.balancing = AmbientLoadBalancing::Any;
    let all = decode_service(&made).load_balancing.expect("a policy");
    assert_eq!((all.mode(), all.health_policy()), (Mode::UnspecifiedMode, HealthPolicy::AllowAll));
}

#[test]
fn service_has_addresses_cidr_blocks_and_waypoint() {
    let mut made = service(ServiceSource::ServiceEntry);
    let waypoint = HboneAddress {
        destination: HboneDestination::Address { network: "n".into(), address: IpAddr::V4(Ipv4Addr::LOCALHOST) },
        port: 15008,
    };
    made.addresses.push("10.2.0.0/16".parse().expect("a block"));
    made.network = "east".into();
    made.waypoints.address = Some(waypoint.clone());
    made.waypoints.weighted = vec![(waypoint, 100)];
    let made = decode_service(&made);
    let lengths: Vec<_> = made.addresses.iter().map(|address| (address.network.as_str(), address.length)).collect();
    assert_eq!(lengths, [("east", None), ("east", Some(16))]);
    assert_eq!(made.addresses[1].address, [10, 2, 0, 0]);
    assert_eq!(made.ports[0].app_protocol(), AppProtocol::Http11);
    assert_eq!(made.waypoint, made.weighted_waypoints[0].destination);
    assert_eq!(made.waypoint.expect("bound").hbone_mtls_port, 15008);
}

#[test]
fn workload_is_encoded_by_itself_and_in_an_address() {
    let labels = Labels::from([("app".into(), "coral".into()), ("version".into(), "v2".into())]);
    let annotations = Labels::from([("ambient.istio.io/redirection".into(), "enabled".into())]);
    let made = build_workload(WorkloadInputs {
        uid: "c//Pod/reef/coral-1",
        addresses: vec![IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1))],
        trust_domain: "cluster.local",
        known: Some(WorkloadDetails { workload_name: "coral-v2", labels: &labels, annotations: &annotations }),
        services: [("reef/coral.reef.svc.cluster.local".into(), vec![(80, 8080)])].into(),
        policies: &["reef/a".into()],
        unhealthy: true,
        locality: Locality::parse("r/z"),
        weight: 3,
        ..WorkloadInputs::default()
    });
    let workload = Workload::decode(made.workload.clone()).expect("a workload");
    let address = Address::decode(made.address).expect("an address");
    assert_eq!(address.r#type, Some(Type::Workload(workload.clone())));
    assert_eq!((workload.canonical_name.as_str(), workload.canonical_revision.as_str()), ("coral", "v2"));
    assert_eq!((workload.tunnel_protocol(), workload.native_tunnel), (TunnelProtocol::Hbone, false));
    assert_eq!((workload.status(), workload.trust_domain.as_str()), (WorkloadStatus::Unhealthy, ""));
    assert_eq!(workload.capacity.map(|weight| weight.value), Some(3));
    assert_eq!(workload.services["reef/coral.reef.svc.cluster.local"].ports[0].target_port, 8080);
}

#[test]
fn workload_with_hbone_label_has_the_tunnel_protocol() {
    let labels = Labels::from([("networking.istio.io/tunnel".into(), "h2,http".into())]);
    let none = Labels::new();
    let known = WorkloadDetails { workload_name: "vm", labels: &labels, annotations: &none };
    let made = build_workload(WorkloadInputs { known: Some(known), trust_domain: "td", ..WorkloadInputs::default() });
    let workload = Workload::decode(made.workload).expect("a workload");
    assert_eq!((workload.tunnel_protocol(), workload.native_tunnel), (TunnelProtocol::Hbone, true));
    assert_eq!((workload.trust_domain.as_str(), workload.canonical_revision.as_str()), ("td", "latest"));
}

fn values(any: &[&str], none: &[&str]) -> PolicyValues {
    let texts = |list: &[&str]| list.iter().map(|text| Text::from(*text)).collect();
    PolicyValues { any: texts(any), none: texts(none) }
}

fn policy(action: PolicyAction, rules: Vec<AuthorizationRule>) -> AuthorizationPolicy {
    AuthorizationPolicy { namespace: "reef".into(), name: "p".into(), action, rules, ..AuthorizationPolicy::default() }
}

fn to(operation: AuthorizationOperation) -> AuthorizationRule {
    AuthorizationRule { to: vec![operation], ..AuthorizationRule::default() }
}

#[test]
fn http_attributes_never_allow_more() {
    let get = to(AuthorizationOperation {
        methods: values(&["GET"], &[]),
        ports: values(&["80"], &[]),
        ..Default::default()
    });
    let port = to(AuthorizationOperation { ports: values(&["81", "x", "70000"], &["82"]), ..Default::default() });
    let header = AuthorizationRule {
        when: vec![AuthorizationCondition { key: "request.headers[a]".into(), values: values(&["b"], &[]) }],
        ..AuthorizationRule::default()
    };
    let rules = vec![get, port, header];
    let allow = authorization(&policy(PolicyAction::Allow, rules.clone()), "root", false).expect("enforced");
    assert_eq!(allow.groups.len(), 1, "the others are about HTTP");
    let only = &allow.groups[0].rules[0].matches[0];
    assert_eq!((&only.destination_ports[..], &only.not_destination_ports[..]), (&[81][..], &[82][..]));
    let deny = authorization(&policy(PolicyAction::Deny, rules), "root", false).expect("enforced");
    assert_eq!(deny.groups.len(), 3);
    assert_eq!(deny.groups[0].rules[0].matches[0].destination_ports, [80]);
    assert_eq!(deny.groups[2].rules[0].matches[0], Default::default(), "it matches nothing");
}

#[test]
fn source_matches_keep_their_form() {
    let from = AuthorizationSource {
        principals: values(&["a", "b*", "*c", "*"], &[]),
        service_accounts: values(&["own", "other/theirs"], &[]),
        ip_blocks: values(&["10.0.0.0/8"], &["::1"]),
        ..AuthorizationSource::default()
    };
    let rule = AuthorizationRule { from: vec![from], ..AuthorizationRule::default() };
    let made = authorization(&policy(PolicyAction::Allow, vec![rule]), "reef", false).expect("enforced");
    assert_eq!((made.scope(), made.action()), (Scope::Global, Action::Allow));
    let source = &made.groups[0].rules[0].matches[0];
    let kinds: Vec<String> = source.principals.iter().map(|kind| format!("{:?}", kind.match_type)).collect();
    let expect = ["Exact(\"a\")", "Prefix(\"b\")", "Suffix(\"c\")", "Presence"];
    for (kind, expect) in kinds.iter().zip(expect) {
        assert!(kind.contains(expect), "{kind} is {expect}");
    }
    let accounts: Vec<_> =
        source.service_accounts.iter().map(|it| (it.namespace.as_str(), it.service_account.as_str())).collect();
    assert_eq!(accounts, [("reef", "own"), ("other", "theirs")]);
    assert_eq!((source.source_ips[0].length, source.not_source_ips[0].length), (8, 128));
    assert_eq!(source.not_source_ips.len(), 1);
}

#[test]
fn invalid_values_never_allow_more_connections() {
    let from = |ip_blocks, namespaces| AuthorizationRule {
        from: vec![AuthorizationSource { ip_blocks, namespaces, ..AuthorizationSource::default() }],
        ..AuthorizationRule::default()
    };
    let groups = |action, rule: AuthorizationRule| {
        authorization(&policy(action, vec![rule]), "root", false).expect("enforced").groups
    };
    for ip_blocks in [values(&["10.0.0.0/40"], &[]), values(&[], &["nonsense"])] {
        let rule = from(ip_blocks, values(&["a"], &[]));
        assert!(groups(PolicyAction::Allow, rule.clone()).is_empty(), "{rule:?}");
        let denied = groups(PolicyAction::Deny, rule);
        let only = &denied[0].rules[0].matches[0];
        assert_eq!((only.source_ips.len(), only.not_source_ips.len(), only.namespaces.len()), (0, 0, 1));
    }
    for accounts in [values(&["bad/*"], &[]), values(&["/"], &[]), values(&[], &["own", "a/b/c"])] {
        let source = AuthorizationSource { service_accounts: accounts, ..AuthorizationSource::default() };
        let rule = AuthorizationRule { from: vec![source], ..AuthorizationRule::default() };
        assert!(groups(PolicyAction::Allow, rule.clone()).is_empty(), "{rule:?}");
        let denied = groups(PolicyAction::Deny, rule.clone());
        let only = &denied[0].rules[0].matches[0];
        assert!(only.service_accounts.is_empty(), "{rule:?}");
        assert!(only.not_service_accounts.len() == 1 || only.not_destination_ports == [0], "{rule:?}");
    }
    for names in [values(&[""], &[]), values(&[], &[""])] {
        let rule = from(values(&[], &[]), names);
        assert!(groups(PolicyAction::Allow, rule.clone()).is_empty(), "{rule:?}");
        assert_eq!(groups(PolicyAction::Deny, rule)[0].rules[0].matches[0].not_destination_ports, [0]);
    }
    let one_of_two = from(values(&["10.0.0.0/8", "10.0.0.0/40"], &[]), values(&["a"], &[]));
    let blocks = |action| groups(action, one_of_two.clone())[0].rules[0].matches[0].source_ips.len();
    assert_eq!((blocks(PolicyAction::Allow), blocks(PolicyAction::Deny)), (1, 0));
    let anything = |action, rule| groups(action, rule)[0].rules[0].matches[0].not_destination_ports == [0];
    assert!(anything(PolicyAction::Deny, from(values(&["nonsense"], &[]), values(&[], &[]))));
    let lost = AuthorizationRule {
        from: vec![AuthorizationSource { unreadable: true, ..AuthorizationSource::default() }],
        ..AuthorizationRule::default()
    };
    assert!(anything(PolicyAction::Deny, lost));
    assert!(groups(PolicyAction::Unreadable, from(values(&["10.0.0.0/8"], &[]), values(&[], &[])))[0].rules.is_empty());
}

#[test]
fn only_l4_policies_apply_to_ztunnel() {
    assert!(authorization(&policy(PolicyAction::Custom, Vec::new()), "root", false).is_none());
    let dry = AuthorizationPolicy { dry_run: true, ..policy(PolicyAction::Deny, Vec::new()) };
    assert!(authorization(&dry, "root", false).is_none());
    assert!(authorization(&dry, "root", true).expect("a policy").dry_run);
    let mut targeted = policy(PolicyAction::Allow, Vec::new());
    targeted.attachment.targets.push(sluice_model::TargetRef::default());
    assert!(authorization(&targeted, "root", false).is_none());
}

fn peers(mtls: PeerMtls, ports: &[(u32, PeerMtls)]) -> PeerAuthentication {
    PeerAuthentication {
        namespace: "reef".into(),
        name: "p".into(),
        selector: [("app".into(), "a".into())].into(),
        mtls,
        ports: ports.iter().copied().collect(),
        ..PeerAuthentication::default()
    }
}

/// The groups, each clause as `port`, `!port` or `?` for a client without identity.
fn shown(policy: &Authorization) -> Vec<String> {
    let clause = |rules: &sluice_proto::istio::security::Rules| {
        let only = &rules.matches[0];
        let ports = only.destination_ports.iter().map(ToString::to_string);
        let not = only.not_destination_ports.iter().map(|port| format!("!{port}"));
        let anonymous = only.not_principals.iter().map(|_| "?".to_owned());
        ports.chain(not).chain(anonymous).collect::<String>()
    };
    policy.groups.iter().map(|group| group.rules.iter().map(clause).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn port_level_modes_that_differ_have_a_policy() {
    use PeerMtls::{Disable, Permissive, Strict, Unset};
    let make = |policy: PeerAuthentication, namespace, mesh| {
        peer_authorization(&policy, InheritedModes { namespace, mesh }).map(|policy| shown(&policy)).unwrap_or_default()
    };
    let strict_but_one = peers(Strict, &[(7000, Permissive), (8080, Strict)]);
    assert_eq!(make(strict_but_one.clone(), None, None), ["? !7000"]);
    assert_eq!(make(strict_but_one, None, Some(Strict)), ["? !7000 ?"]);
    let lax_but_two = peers(Permissive, &[(1, Strict), (2, Strict), (3, Disable)]);
    assert_eq!(make(lax_but_two, Some(Disable), Some(Strict)), ["1?", "2?"]);
    let left_open = peers(Unset, &[(1, Permissive), (2, Strict)]);
    assert_eq!(make(left_open.clone(), Some(Strict), None), ["!1 ?"]);
    assert_eq!(make(left_open, None, None), ["2?"]);
    assert!(make(peers(Strict, &[(1, Strict)]), None, None).is_empty());
    let without_selector = PeerAuthentication { selector: Labels::new(), ..peers(Strict, &[(1, Permissive)]) };
    assert!(make(without_selector, None, None).is_empty());
}
