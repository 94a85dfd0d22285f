//! DNS responses for names of the mesh.

use std::net::IpAddr;

use rand::seq::SliceRandom as _;
use simple_dns::rdata::{A, AAAA, CNAME, OPT, RData};
use simple_dns::{CLASS, Name, OPCODE, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE};

use super::table::{HostLookup, NameTableStore};

/// Time to live of a record, in seconds.
const TTL_SECONDS: u32 = 30;
/// Size limit of a UDP response, unless the client announces a larger one.
const DEFAULT_UDP_BYTES: u16 = 512;

/// How a request is handled.
pub(super) enum Resolution {
    /// The encoded response.
    Ready(Vec<u8>),
    /// The request is forwarded to a name server.
    Forward,
    /// The bytes are not a request.
    Ignore,
}

/// Resolves a request, if the mesh has the name.
pub(super) fn resolve(names: &NameTableStore, bytes: &[u8], udp: bool) -> Resolution {
    let Ok(request) = Packet::parse(bytes) else { return Resolution::Ignore };
    if request.has_flags(PacketFlag::RESPONSE) {
        return Resolution::Ignore;
    }
    let [question] = request.questions.as_slice() else { return ready(server_failure(&request)) };
    if request.opcode() != OPCODE::StandardQuery {
        return Resolution::Forward;
    }
    let name = question.qname.to_string().to_ascii_lowercase();
    let (alias_of, addresses) = match names.lookup(&name) {
        HostLookup::NoTable => return ready(server_failure(&request)),
        HostLookup::Unknown => return Resolution::Forward,
        HostLookup::Resolved { alias_of, addresses } => (alias_of, addresses),
    };
    let is_v4 = match question.qtype {
        QTYPE::TYPE(TYPE::A) => true,
        QTYPE::TYPE(TYPE::AAAA) => false,
        _ => return Resolution::Forward,
    };
    let mut addresses: Vec<IpAddr> = addresses.into_iter().filter(|address| address.is_ipv4() == is_v4).collect();
    addresses.shuffle(&mut rand::rng());
    let target = alias_of.as_deref().and_then(|name| Name::new(name).ok());
    let owner = target.clone().unwrap_or_else(|| question.qname.clone());
    let mut reply = reply_to(&request);
    reply.set_flags(PacketFlag::AUTHORITATIVE_ANSWER);
    if let (Some(target), false) = (target, addresses.is_empty()) {
        reply.answers.push(record(question.qname.clone(), RData::CNAME(CNAME(target))));
    }
    for address in addresses {
        let data = match address {
            IpAddr::V4(address) => RData::A(A { address: address.into() }),
            IpAddr::V6(address) => RData::AAAA(AAAA { address: address.into() }),
        };
        reply.answers.push(record(owner.clone(), data));
    }
    let udp_limit = request.opt().map_or(DEFAULT_UDP_BYTES, |opt| opt.udp_packet_size.max(DEFAULT_UDP_BYTES));
    fit(reply, if udp { usize::from(udp_limit) } else { usize::from(u16::MAX) })
        .map_or(Resolution::Ignore, Resolution::Ready)
}

/// The response SERVFAIL; `None` if the bytes are not a request.
pub(super) fn failure(bytes: &[u8]) -> Option<Vec<u8>> {
    server_failure(&Packet::parse(bytes).ok()?)
}

fn server_failure(request: &Packet<'_>) -> Option<Vec<u8>> {
    let mut reply = reply_to(request);
    *reply.rcode_mut() = RCODE::ServerFailure;
    reply.build_bytes_vec_compressed().ok()
}

fn ready(response: Option<Vec<u8>>) -> Resolution {
    response.map_or(Resolution::Ignore, Resolution::Ready)
}

fn reply_to<'a>(request: &Packet<'a>) -> Packet<'a> {
    let mut reply = Packet::new_reply(request.id());
    *reply.opcode_mut() = request.opcode();
    if request.has_flags(PacketFlag::RECURSION_DESIRED) {
        reply.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    reply.questions = request.questions.clone();
    if request.opt().is_some() {
        *reply.opt_mut() = Some(OPT { opt_codes: Vec::new(), udp_packet_size: 4096, version: 0 });
    }
    reply
}

fn record<'a>(name: Name<'a>, data: RData<'a>) -> ResourceRecord<'a> {
    ResourceRecord::new(name, CLASS::IN, TTL_SECONDS, data)
}

/// Encodes a response within a size limit. Records that do not fit are dropped, and the response is marked as truncated.
fn fit(mut reply: Packet<'_>, max_bytes: usize) -> Option<Vec<u8>> {
    loop {
        let bytes = reply.build_bytes_vec_compressed().ok()?;
        let excess = bytes.len().saturating_sub(max_bytes);
        if excess == 0 {
            return Some(bytes);
        }
        reply.set_flags(PacketFlag::TRUNCATION);
        // A record with a compressed name has at least 16 bytes.
        let left = reply.answers.len().checked_sub(1 + excess / 64)?;
        reply.answers.truncate(left);
    }
}

#[cfg(test)]
mod tests {
    use simple_dns::Question;

    use super::super::table::tests::names;
    use super::*;

    fn request(name: &str, qtype: TYPE) -> Vec<u8> {
        let mut request = Packet::new_query(7);
        let name = Name::new_unchecked(name);
        request.questions.push(Question::new(name, qtype.into(), CLASS::IN.into(), false));
        request.set_flags(PacketFlag::RECURSION_DESIRED);
        request.build_bytes_vec().expect("a request")
    }

    fn query(name: &str, qtype: TYPE) -> Option<(RCODE, Vec<String>)> {
        let Resolution::Ready(bytes) = resolve(&names(), &request(name, qtype), true) else { return None };
        let reply = Packet::parse(&bytes).expect("a reply");
        assert!(reply.has_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_DESIRED));
        assert_eq!((reply.id(), reply.questions.len()), (7, 1));
        let answers = reply.answers.iter().map(|answer| {
            assert_eq!(answer.ttl, TTL_SECONDS);
            match &answer.rdata {
                RData::A(a) => format!("{} A {}", answer.name, std::net::Ipv4Addr::from(a.address)),
                RData::AAAA(a) => format!("{} AAAA {}", answer.name, std::net::Ipv6Addr::from(a.address)),
                RData::CNAME(name) => format!("{} CNAME {}", answer.name, name.0),
                other => panic!("{other:?}"),
            }
        });
        Some((reply.rcode(), answers.collect()))
    }

    #[test]
    fn records_are_of_the_requested_family() {
        assert_eq!(query("TEA.shop", TYPE::A), Some((RCODE::NoError, vec!["TEA.shop A 10.0.0.1".to_owned()])));
        assert_eq!(query("tea", TYPE::AAAA), Some((RCODE::NoError, vec!["tea AAAA fd00::1".to_owned()])));
        assert_eq!(
            query("pot.store", TYPE::AAAA),
            Some((RCODE::NoError, Vec::new())),
            "it exists in the other family only"
        );
    }

    #[test]
    fn name_with_search_domain_is_an_alias() {
        let name = "a.example.com.shop.svc.cluster.local";
        let expected = vec![format!("{name} CNAME a.example.com"), "a.example.com A 10.0.0.4".to_owned()];
        assert_eq!(query(name, TYPE::A), Some((RCODE::NoError, expected)));
    }

    #[test]
    fn names_outside_the_mesh_are_forwarded() {
        assert!(matches!(resolve(&names(), &request("other.com", TYPE::A), true), Resolution::Forward));
        assert!(matches!(resolve(&names(), &request("tea", TYPE::TXT), true), Resolution::Forward));
        assert!(matches!(resolve(&names(), b"nonsense", true), Resolution::Ignore));
        let failed = failure(&request("other.com", TYPE::A)).expect("a reply");
        assert_eq!(Packet::parse(&failed).expect("a reply").rcode(), RCODE::ServerFailure);
    }

    #[test]
    fn response_is_servfail_before_the_name_table_arrives() {
        let names = NameTableStore::new("shop", "shop.svc.cluster.local", None);
        let Resolution::Ready(bytes) = resolve(&names, &request("tea", TYPE::A), true) else { panic!("no response") };
        assert_eq!(Packet::parse(&bytes).expect("a reply").rcode(), RCODE::ServerFailure);
    }

    #[test]
    fn response_is_truncated_to_the_limit_of_the_client() {
        let bytes = request("many", TYPE::A);
        let request = Packet::parse(&bytes).expect("a request");
        let mut reply = reply_to(&request);
        for address in 0..100 {
            reply.answers.push(record(Name::new_unchecked("many"), RData::A(A { address })));
        }
        let complete = fit(reply.clone(), usize::from(u16::MAX)).expect("a reply");
        assert_eq!(Packet::parse(&complete).expect("a reply").answers.len(), 100);
        let truncated = fit(reply, 512).expect("a reply");
        let truncated_reply = Packet::parse(&truncated).expect("a reply");
        assert!(
            truncated.len() <= 512
                && truncated_reply.answers.len() > 20
                && truncated_reply.has_flags(PacketFlag::TRUNCATION)
        );
    }
}
