//! Conflicts: of two listeners that cannot be distinguished the first is served (G06).

use sluice_model::gateway_api::Listener;

/// Which of the listeners of a Gateway, in order of precedence, conflict with an earlier one, with the reason of their condition.
/// If UDP is served, a listener of UDP conflicts with none of TCP.
pub(super) fn find_conflicts<'a>(
    listeners: impl Iterator<Item = (&'a Listener, u16)>,
    serves_udp: bool,
) -> Vec<Option<&'static str>> {
    let mut accepted: Vec<(&Listener, u16)> = Vec::new();
    let mut lost = Vec::new();
    for (listener, port) in listeners {
        let conflict = accepted.iter().find(|(prior, at)| port == *at && !are_distinct(listener, prior, serves_udp));
        let reason = conflict.map(|(prior, _)| reason(listener, prior));
        if reason.is_none() {
            accepted.push((listener, port));
        }
        lost.push(reason);
    }
    lost
}

fn is_l4(listener: &Listener) -> bool {
    matches!(listener.protocol.as_str(), "TCP" | "UDP")
}

/// Why two listeners of one port conflict.
fn reason(a: &Listener, b: &Listener) -> &'static str {
    if a.protocol != b.protocol || (is_l4(a) && is_l4(b)) { "ProtocolConflict" } else { "HostnameConflict" }
}

/// Whether two listeners of one port are distinguished by protocol or host.
fn are_distinct(a: &Listener, b: &Listener, serves_udp: bool) -> bool {
    let protocols = (a.protocol.as_str(), b.protocol.as_str());
    // HTTPS may also be served over UDP.
    if serves_udp && let ("UDP", other) | (other, "UDP") = protocols {
        return !matches!(other, "UDP" | "HTTPS");
    }
    let is_named = |listener: &Listener| matches!(listener.protocol.as_str(), "HTTP" | "HTTPS" | "TLS");
    let hostname = |listener: &Listener| match listener.hostname.as_str() {
        "" => "*".to_owned(),
        name => name.to_owned(),
    };
    match (is_l4(a), is_l4(b), is_named(a), is_named(b)) {
        (true, _, _, true) | (_, true, true, _) | (true, true, ..) => false,
        (_, _, true, true) => hostname(a) != hostname(b),
        _ => a.protocol != b.protocol,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_port_protocol_and_host_wins() {
        let listener = |protocol: &str, hostname: &str| Listener {
            protocol: protocol.into(),
            hostname: hostname.into(),
            ..Listener::default()
        };
        let all = [
            (listener("HTTP", "a.b"), 80),
            (listener("HTTPS", "a.b"), 80),
            (listener("HTTP", "c.b"), 80),
            (listener("TCP", ""), 80),
            (listener("TCP", ""), 81),
            (listener("UDP", ""), 81),
            (listener("HTTP", ""), 82),
            (listener("HTTP", "*"), 82),
        ];
        let find = |serves_udp: bool| find_conflicts(all.iter().map(|(listener, port)| (listener, *port)), serves_udp);
        let lost = find(false);
        let (hostname, protocol) = (Some("HostnameConflict"), Some("ProtocolConflict"));
        assert_eq!(lost, [None, protocol, None, protocol, None, protocol, None, hostname]);
        assert_eq!(find(true), [None, protocol, None, protocol, None, None, None, hostname]);
        let of = |protocols: [&str; 2]| {
            let all = protocols.map(|protocol| listener(protocol, ""));
            find_conflicts(all.iter().map(|listener| (listener, 53)), true)[1]
        };
        assert_eq!([of(["HTTPS", "UDP"]), of(["UDP", "UDP"]), of(["UDP", "TLS"])], [protocol, protocol, None]);
    }
}
