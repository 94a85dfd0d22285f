use std::time::Duration;

use super::*;

fn slots(limits: ListenLimits) -> Arc<Slots> {
    let unlimited_addresses = vec!["10.9.0.0/16".parse().expect("a range")];
    Slots::new(PortOptions { name: "test", limits, unlimited_addresses, ..PortOptions::default() })
}

fn peer(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), 1)
}

#[test]
fn connections_are_limited_in_total_and_by_address() {
    let slots = slots(ListenLimits { max_connections: 5, max_connections_per_address: 2, ..ListenLimits::default() });
    let add = |address: &str| slots.add(peer(address));
    let first = add("10.0.0.1").expect("below the limits");
    let _second = add("::ffff:10.0.0.1").expect("the same address");
    assert!(add("10.0.0.1").is_none(), "the address has two connections");
    let _networks = [add("fd00::1").expect("a network"), add("fd00::2:0:0:2").expect("the same network")];
    assert!(add("fd00::ffff").is_none(), "the network has two connections");
    let _other = add("fd00:0:0:1::1").expect("another network");
    assert!(add("10.0.0.2").is_none(), "the port has five connections");
    drop(first);
    assert!(add("10.0.0.1").is_some(), "a connection has ended");
}

#[test]
fn ranges_without_limits_by_address_are_limited_in_total_only() {
    let slots = slots(ListenLimits { max_connections: 3, max_connections_per_address: 1, ..ListenLimits::default() });
    let kept: Vec<_> = (0..3).map(|_| slots.add(peer("10.9.0.1"))).collect();
    assert!(kept.iter().all(Option::is_some));
    assert!(slots.add(peer("10.9.0.1")).is_none());
}

#[test]
fn table_has_no_entry_of_closed_connections() {
    let slots = slots(ListenLimits::default());
    for n in 0..1000_u32 {
        drop(slots.add(SocketAddr::new(IpAddr::from(n.to_be_bytes()), 1)));
    }
    assert!(slots.table().addresses.is_empty());
    assert_eq!(slots.table().connections, 0);
}

#[tokio::test]
async fn pending_connections_of_one_address_leave_permits_for_others() {
    let handshake_timeout = Duration::from_millis(50);
    let limits =
        ListenLimits { max_pending: 3, max_pending_per_address: 2, handshake_timeout, ..ListenLimits::default() };
    let slots = slots(limits);
    let silent = [slots.add(peer("10.0.0.1")), slots.add(peer("10.0.0.1"))].map(|slot| slot.expect("a slot"));
    for slot in &silent {
        assert!(slot.begin().await);
    }
    let third = slots.add(peer("10.0.0.1")).expect("a slot");
    assert!(!third.begin().await, "it waits until the time limit");
    let other = slots.add(peer("10.0.0.2")).expect("a slot");
    assert!(other.begin().await, "the other address has a permit");
    let last = slots.add(peer("10.0.0.3")).expect("a slot");
    assert!(!last.begin().await, "all permits are in use");
    other.first_request();
    assert!(last.begin().await, "the first request of another connection frees a permit");
    drop((silent, third, other, last));
    assert_eq!(slots.pending.available_permits(), 3);
    assert!(slots.table().addresses.is_empty());
}

#[tokio::test]
async fn connection_that_begins_twice_takes_one_permit() {
    let handshake_timeout = Duration::from_millis(50);
    let limits =
        ListenLimits { max_pending: 1, max_pending_per_address: 1, handshake_timeout, ..ListenLimits::default() };
    let slots = slots(limits);
    let slot = slots.add(peer("10.0.0.1")).expect("a slot");
    // Once before the TLS handshake, once before requests are served.
    assert!(slot.begin().await && slot.begin().await);
    assert_eq!((slots.pending_metric.get(), slots.pending.available_permits()), (1, 0));
    slot.first_request();
    assert_eq!((slots.pending_metric.get(), slots.pending.available_permits()), (0, 1));
}
