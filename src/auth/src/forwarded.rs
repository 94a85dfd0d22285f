//! Client certificates that a trusted peer forwards in `x-forwarded-client-cert` (P07).

mod header;

use std::net::IpAddr;

use futures::future::BoxFuture;
use ipnet::IpNet;

use crate::{Authenticator, Call, Verdict};

/// The header with the client certificates of a forwarded request.
pub const FORWARDED_HEADER: &str = "x-forwarded-client-cert";

/// Accepts `x-forwarded-client-cert` from gateways in trusted address ranges. The loopback is trusted only if a range contains
/// it: other processes of the pod or the machine can connect from there.
///
/// A trusted gateway must verify the certificates it forwards, and must drop this header from the requests of its own
/// clients (`SANITIZE_SET`).
#[derive(Clone, Debug, Default)]
pub struct ForwardedCertificates {
    trusted: Vec<IpNet>,
}

impl ForwardedCertificates {
    /// Trusts these ranges.
    #[must_use]
    pub fn new(trusted: Vec<IpNet>) -> Self {
        Self { trusted }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted.iter().any(|range| range.contains(&address))
    }

    fn verdict(&self, call: &Call<'_>) -> Verdict {
        let Some(value) = call.headers.get(FORWARDED_HEADER).filter(|value| !value.is_empty()) else {
            return Verdict::NoCredentials;
        };
        if !call.peer.is_some_and(|peer| self.trusts(peer.ip())) {
            return Verdict::Rejected(format!(
                "{FORWARDED_HEADER} is accepted from trusted addresses only (TRUSTED_GATEWAY_CIDR)"
            ));
        }
        let elements = value.to_str().ok().and_then(header::parse);
        let Some(elements) = elements.filter(|elements| !elements.is_empty()) else {
            return Verdict::Rejected(format!("{FORWARDED_HEADER} is malformed"));
        };
        // Names that are no service accounts give no identity; the caller is authenticated nevertheless.
        Verdict::Identified(
            elements.iter().flat_map(|element| &element.uris).filter_map(|uri| uri.parse().ok()).collect(),
        )
    }
}

impl Authenticator for ForwardedCertificates {
    fn name(&self) -> &'static str {
        "forwarded certificate"
    }

    fn authenticate<'a>(&'a self, call: &'a Call<'a>) -> BoxFuture<'a, Verdict> {
        let verdict = self.verdict(call);
        Box::pin(async move { verdict })
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use http::{HeaderMap, HeaderValue};
    use sluice_model::Identity;

    use super::*;

    const EDGE: &str = "By=spiffe://cluster.local/ns/istio-system/sa/istiod;URI=spiffe://cluster.local/ns/edge/sa/gw";

    fn verdict(peer: &str, value: &'static [u8]) -> Verdict {
        let trusted = vec!["10.1.0.0/16".parse().expect("a range"), "fd00:1::/32".parse().expect("a range")];
        let mut headers = HeaderMap::new();
        headers.insert(FORWARDED_HEADER, HeaderValue::from_bytes(value).expect("a header"));
        let peer = Some(peer.parse::<SocketAddr>().expect("an address"));
        ForwardedCertificates::new(trusted).verdict(&Call { headers: &headers, peer, certificates: &[] })
    }

    #[test]
    fn forwarded_certificates_are_accepted_from_trusted_peers_only() {
        let edge = Verdict::Identified(vec![Identity::new("cluster.local", "edge", "gw")]);
        for peer in ["10.1.255.3:1", "[fd00:1::7]:1"] {
            assert_eq!(verdict(peer, EDGE.as_bytes()), edge, "{peer}");
        }
        assert_eq!(verdict("[::ffff:10.1.0.1]:1", EDGE.as_bytes()), edge, "an IPv4-mapped address");
        for peer in [
            "127.0.0.1:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
            "10.2.0.1:1",
            "192.168.0.1:1",
            "[fd00:2::7]:1",
            "0.0.0.0:1",
        ] {
            assert!(matches!(verdict(peer, EDGE.as_bytes()), Verdict::Rejected(_)), "{peer}");
        }
        let mut headers = HeaderMap::new();
        let none = Call { headers: &headers, peer: None, certificates: &[] };
        assert_eq!(ForwardedCertificates::default().verdict(&none), Verdict::NoCredentials);
        headers.insert(FORWARDED_HEADER, HeaderValue::from_static(EDGE));
        let unknown_peer = Call { headers: &headers, peer: None, certificates: &[] };
        assert!(matches!(ForwardedCertificates::default().verdict(&unknown_peer), Verdict::Rejected(_)));
    }

    #[test]
    fn malformed_header_is_rejected() {
        for value in [&b"nonsense"[..], b"URI=", b"\xff\xfe", b"URI=\"spiffe://td/ns/a/sa/b", b";;,"] {
            let refused = verdict("10.1.0.1:1", value);
            assert!(matches!(refused, Verdict::Rejected(_)), "{:?}: {refused:?}", String::from_utf8_lossy(value));
        }
        assert_eq!(verdict("10.1.0.1:1", b"By=a;DNS=web.example"), Verdict::Identified(Vec::new()));
        assert_eq!(verdict("10.1.0.1:1", b"By=spiffe://td/ns/a/sa/b"), Verdict::Identified(Vec::new()));
    }
}
