//! Tables of a small dump.

use serde_json::json;

use super::*;

fn dump() -> ZtunnelDump {
    let dump = json!({
        "workloads": [
            {"uid": "c//Pod/shop/cart-7f", "workloadIps": ["10.0.0.1"], "protocol": "HBONE", "name": "cart-7f", "namespace": "shop",
             "node": "worker-1", "status": "Healthy", "waypoint": {"destination": "shop/way.shop.svc.cluster.local"}},
            {"uid": "c//Pod/bank/till-1", "workloadIps": ["10.0.0.2"], "protocol": "TCP", "name": "till-1", "namespace": "bank",
             "node": "worker-2", "status": "Unhealthy"},
        ],
        "services": {
            "a": {"name": "cart", "namespace": "shop", "hostname": "cart.shop.svc.cluster.local", "vips": ["net/10.96.0.1"],
                  "endpoints": {"1": {"workloadUid": "c//Pod/shop/cart-7f"}, "2": {"workloadUid": "c//Pod/bank/till-1"}}},
            "b": {"name": "way", "namespace": "shop", "hostname": "way.shop.svc.cluster.local", "vips": ["net/10.96.0.2"], "endpoints": {}},
        },
        "policies": [
            {"name": "open", "namespace": "shop", "action": "Allow", "scope": "Namespace"},
            {"name": "closed", "namespace": "bank", "action": "Deny", "scope": "WorkloadSelector"},
        ],
        "certificates": [
            {"identity": "spiffe://td/ns/shop/sa/cart", "state": "Available",
             "certChain": [
                {"serialNumber": "255", "validFrom": "2026-01-01T00:00:00Z", "expirationTime": "2026-01-02T00:00:00Z"},
             ],
             "rootCerts": [{"serialNumber": "16", "validFrom": "2025-01-01T00:00:00Z", "expirationTime": "2035-01-01T00:00:00Z"}]},
            {"identity": "spiffe://td/ns/bank/sa/till", "state": {"Unavailable": "no answer"}, "certChain": []},
        ],
        "workloadState": {"1": {
            "info": {"name": "cart-7f", "namespace": "shop"},
            "connections": {
                "inbound": [{"src": "10.0.0.2:4000", "actualDst": "10.0.0.1:80", "originalDst": "cart.shop", "protocol": "HBONE"}],
                "outbound": [{"src": "10.0.0.1:4001", "actualDst": "10.0.0.2:15008", "originalDst": "10.96.0.1:80", "protocol": "HBONE"}],
            },
        }},
    });
    ZtunnelDump::parse(dump.to_string().as_bytes()).expect("a dump")
}

fn printed(kind: Kind, filter: &Filter) -> String {
    let mut out = Vec::new();
    show(&dump(), kind, filter, AnswerOutput::Table, &mut out).expect("printed");
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn tables_have_the_columns_of_istioctl() {
    let none = Filter::default();
    let workloads = "\
NAMESPACE POD NAME ADDRESS  NODE     WAYPOINT PROTOCOL
bank      till-1   10.0.0.2 worker-2 None     TCP
shop      cart-7f  10.0.0.1 worker-1 way      HBONE
";
    assert_eq!(printed(Kind::Workload, &none), workloads);
    let services = "\
NAMESPACE SERVICE NAME SERVICE VIP WAYPOINT ENDPOINTS
shop      cart         10.96.0.1   None     1/2
shop      way          10.96.0.2   None     0/0
";
    assert_eq!(printed(Kind::Service, &none), services);
    let policies = "\
NAMESPACE POLICY NAME ACTION SCOPE
bank      closed      Deny   WorkloadSelector
shop      open        Allow  Namespace
";
    assert_eq!(printed(Kind::Policy, &none), policies);
    let connections = "\
WORKLOAD     DIRECTION LOCAL                REMOTE            REMOTE TARGET                  PROTOCOL
cart-7f.shop Inbound   cart-7f.shop:80      till-1.bank:4000  cart.shop                      HBONE
cart-7f.shop Outbound  cart-7f.shop:4001    till-1.bank:15008 cart.shop.svc.cluster.local:80 HBONE
";
    let words = |text: &str| text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    let ours: Vec<Vec<String>> = words(&printed(Kind::Connections, &none));
    assert_eq!(ours, words(connections));
}

#[test]
fn certificates_have_their_kind_state_and_validity() {
    let now = "2026-01-01T12:00:00Z".parse().expect("a time");
    let rows = certificates::rows(&dump(), now);
    let (cart, till) = ("spiffe://td/ns/shop/sa/cart", "spiffe://td/ns/bank/sa/till");
    assert_eq!(
        rows,
        [
            [cart, "Leaf", "Available", "true", "ff", "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"],
            [cart, "Root", "Available", "true", "10", "2035-01-01T00:00:00Z", "2025-01-01T00:00:00Z"],
            [till, "NA", "Unavailable", "false", "NA", "NA", "NA"],
        ]
    );
    let later = "2026-02-01T00:00:00Z".parse().expect("a time");
    assert_eq!(certificates::rows(&dump(), later)[0][3], "false");
}

#[test]
fn records_are_selected_by_name_namespace_address_node_and_direction() {
    let some = |text: &str| Some(text.to_owned());
    let none = Filter::default;
    for (kind, filter, count) in [
        (Kind::Workload, Filter { address: some("10.0.0.1"), ..none() }, 1),
        (Kind::Workload, Filter { node: some("WORKER-2"), ..none() }, 1),
        (Kind::Workload, Filter { name: some("cart-7f"), namespace: some("bank"), ..none() }, 0),
        (Kind::Service, Filter { namespace: some("bank"), ..none() }, 0),
        (Kind::Policy, Filter { namespace: some("bank"), ..none() }, 1),
        (Kind::Connections, Filter { direction: Some(ConnectionDirection::Inbound), ..none() }, 1),
        (Kind::Connections, Filter { namespace: some("bank"), ..none() }, 0),
    ] {
        assert_eq!(printed(kind, &filter).lines().count(), count + 1, "{kind:?} {filter:?}");
    }
    let raw = printed(Kind::Connections, &Filter { raw: true, ..none() });
    assert!(raw.contains("10.0.0.2:4000") && !raw.contains("till-1"), "{raw}");
}

#[test]
fn all_kinds_have_a_title_if_it_is_asked_for() {
    let print = |with_headers| {
        let mut out = Vec::new();
        all(&dump(), with_headers, AnswerOutput::Table, &mut out).expect("printed");
        String::from_utf8(out).expect("UTF-8")
    };
    assert!(print(true).contains("------ WORKLOAD INFO ------\n\nNAMESPACE"));
    assert!(!print(false).contains("------"));
    assert!(ZtunnelDump::parse(b"{}").is_err());
}
