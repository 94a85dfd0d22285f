//! Answers in the form of the protocol.

use std::net::IpAddr;

use rand::seq::SliceRandom as _;
use simple_dns::rdata::{A, AAAA, CNAME, OPT, RData};
use simple_dns::{CLASS, Name, OPCODE, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE};

use super::table::{Found, Names};

/// Seconds an answer holds.
const TTL: u32 = 30;
/// Most bytes over UDP, unless the client takes more.
const PLAIN_UDP: u16 = 512;

/// What becomes of a request.
pub(super) enum Reply {
    Ready(Vec<u8>),
    /// Somebody else may know.
    Forward,
    /// It is no request.
    None,
}

/// Answers a request, as far as the mesh has the name.
pub(super) fn answer(names: &Names, bytes: &[u8], udp: bool) -> Reply {
    let Ok(request) = Packet::parse(bytes) else { return Reply::None };
    if request.has_flags(PacketFlag::RESPONSE) {
        return Reply::None;
    }
    let [question] = request.questions.as_slice() else { return ready(fail(&request)) };
    if request.opcode() != OPCODE::StandardQuery {
        return Reply::Forward;
    }
    let name = question.qname.to_string().to_ascii_lowercase();
    let (alias_of, addresses) = match names.find(&name) {
        Found::Unready => return ready(fail(&request)),
        Found::Unknown => return Reply::Forward,
        Found::Known { alias_of, addresses } => (alias_of, addresses),
    };
    let wants_v4 = match question.qtype {
        QTYPE::TYPE(TYPE::A) => true,
        QTYPE::TYPE(TYPE::AAAA) => false,
        _ => return Reply::Forward,
    };
    let mut addresses: Vec<IpAddr> = addresses.into_iter().filter(|address| address.is_ipv4() == wants_v4).collect();
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
    let taken = request.opt().map_or(PLAIN_UDP, |opt| opt.udp_packet_size.max(PLAIN_UDP));
    fit(reply, if udp { usize::from(taken) } else { usize::from(u16::MAX) }).map_or(Reply::None, Reply::Ready)
}

/// Says that there is no answer now; nothing to what is no request.
pub(super) fn failure(bytes: &[u8]) -> Option<Vec<u8>> {
    fail(&Packet::parse(bytes).ok()?)
}

fn fail(request: &Packet<'_>) -> Option<Vec<u8>> {
    let mut reply = reply_to(request);
    *reply.rcode_mut() = RCODE::ServerFailure;
    reply.build_bytes_vec_compressed().ok()
}

fn ready(answer: Option<Vec<u8>>) -> Reply {
    answer.map_or(Reply::None, Reply::Ready)
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
    ResourceRecord::new(name, CLASS::IN, TTL, data)
}

/// As many answers as fit; fewer than all are marked as such.
fn fit(mut reply: Packet<'_>, most: usize) -> Option<Vec<u8>> {
    loop {
        let bytes = reply.build_bytes_vec_compressed().ok()?;
        let too_many = bytes.len().saturating_sub(most);
        if too_many == 0 {
            return Some(bytes);
        }
        reply.set_flags(PacketFlag::TRUNCATION);
        // An answer with its name compressed has at least 16 bytes.
        let left = reply.answers.len().checked_sub(1 + too_many / 64)?;
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

    fn ask(name: &str, qtype: TYPE) -> Option<(RCODE, Vec<String>)> {
        let Reply::Ready(bytes) = answer(&names(), &request(name, qtype), true) else { return None };
        let reply = Packet::parse(&bytes).expect("a reply");
        assert!(reply.has_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_DESIRED));
        assert_eq!((reply.id(), reply.questions.len()), (7, 1));
        let answers = reply.answers.iter().map(|answer| {
            assert_eq!(answer.ttl, TTL);
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
    fn names_are_answered_by_family() {
        assert_eq!(ask("TEA.shop", TYPE::A), Some((RCODE::NoError, vec!["TEA.shop A 10.0.0.1".to_owned()])));
        assert_eq!(ask("tea", TYPE::AAAA), Some((RCODE::NoError, vec!["tea AAAA fd00::1".to_owned()])));
        assert_eq!(ask("pot.store", TYPE::AAAA), Some((RCODE::NoError, Vec::new())), "it exists, but not so");
    }

    #[test]
    fn an_alias_is_answered_with_its_target() {
        let name = "a.example.com.shop.svc.cluster.local";
        let expected = vec![format!("{name} CNAME a.example.com"), "a.example.com A 10.0.0.4".to_owned()];
        assert_eq!(ask(name, TYPE::A), Some((RCODE::NoError, expected)));
    }

    #[test]
    fn what_is_not_the_meshs_is_passed_on() {
        assert!(matches!(answer(&names(), &request("other.com", TYPE::A), true), Reply::Forward));
        assert!(matches!(answer(&names(), &request("tea", TYPE::TXT), true), Reply::Forward));
        assert!(matches!(answer(&names(), b"nonsense", true), Reply::None));
        let failed = failure(&request("other.com", TYPE::A)).expect("a reply");
        assert_eq!(Packet::parse(&failed).expect("a reply").rcode(), RCODE::ServerFailure);
    }

    #[test]
    fn before_there_are_names_every_answer_is_a_failure() {
        let names = Names::new("shop", "shop.svc.cluster.local", None);
        let Reply::Ready(bytes) = answer(&names, &request("tea", TYPE::A), true) else { panic!("no answer") };
        assert_eq!(Packet::parse(&bytes).expect("a reply").rcode(), RCODE::ServerFailure);
    }

    #[test]
    fn answers_are_cut_to_what_the_client_takes() {
        let bytes = request("many", TYPE::A);
        let request = Packet::parse(&bytes).expect("a request");
        let mut reply = reply_to(&request);
        for address in 0..100 {
            reply.answers.push(record(Name::new_unchecked("many"), RData::A(A { address })));
        }
        let whole = fit(reply.clone(), usize::from(u16::MAX)).expect("a reply");
        assert_eq!(Packet::parse(&whole).expect("a reply").answers.len(), 100);
        let cut = fit(reply, 512).expect("a reply");
        let cut_reply = Packet::parse(&cut).expect("a reply");
        assert!(cut.len() <= 512 && cut_reply.answers.len() > 20 && cut_reply.has_flags(PacketFlag::TRUNCATION));
    }
}
