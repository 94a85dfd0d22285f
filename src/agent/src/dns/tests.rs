use std::time::Duration;

use simple_dns::{CLASS, Name, Packet, Question, TYPE};
use sluice_listen::ListenMetrics;

use super::table::tests::names;
use super::*;

fn request(name: &str) -> Vec<u8> {
    let mut request = Packet::new_query(9);
    let name = Name::new_unchecked(name);
    request.questions.push(Question::new(name, TYPE::A.into(), CLASS::IN.into(), false));
    request.build_bytes_vec().expect("a request")
}

/// A name server that responds to each UDP request with the request and a mark.
async fn name_server() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("listen");
    let address = socket.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut buffer = [0; 600];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
            let response = [&buffer[..length], b"mark"].concat();
            socket.send_to(&response, peer).await.expect("respond");
        }
    });
    address
}

async fn resolver(servers: Vec<SocketAddr>, parallel: bool) -> Resolver {
    resolver_with(Forwarder { servers, parallel, timeout: Duration::from_secs(5) })
}

fn resolver_with(forwarder: Forwarder) -> Resolver {
    Resolver { names: names(), forwarder, metrics: Metrics::default(), request_slots: Arc::new(Semaphore::new(1)) }
}

#[tokio::test]
async fn request_is_forwarded_to_another_server_if_one_fails() {
    // No server listens on port 1: the request fails at once.
    let servers = vec!["127.0.0.1:1".parse().expect("an address"), name_server().await];
    for parallel in [false, true] {
        let resolver = resolver(servers.clone(), parallel).await;
        let response = resolver.resolve(&request("other.com"), true).await.expect("a response");
        assert!(response.ends_with(b"mark"));
        assert!(!resolver.resolve(&request("tea"), true).await.expect("a response").ends_with(b"mark"));
    }
    let failure = resolver(Vec::new(), false).await.resolve(&request("other.com"), true).await.expect("a response");
    assert_eq!(Packet::parse(&failure).expect("a reply").rcode(), simple_dns::RCODE::ServerFailure);
}

#[tokio::test]
async fn silent_name_server_is_given_up_at_the_time_limit_or_asked_with_the_others() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.expect("listen");
    let silent = silent.local_addr().expect("an address");
    let answered = async |servers: Vec<SocketAddr>, parallel, timeout| {
        let resolver = resolver_with(Forwarder { servers, parallel, timeout });
        let started = std::time::Instant::now();
        let response = resolver.resolve(&request("other.com"), true).await.expect("a response");
        (response.ends_with(b"mark"), started.elapsed())
    };
    let limit = Duration::from_millis(300);
    let (is_answer, waited) = answered(vec![silent], false, limit).await;
    assert!(!is_answer && waited >= limit, "{waited:?}");
    let (is_answer, waited) = answered(vec![silent, name_server().await], true, Duration::from_secs(60)).await;
    assert!(is_answer && waited < Duration::from_secs(30), "{waited:?}");
}

#[tokio::test]
async fn requests_are_served_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let address = listener.local_addr().expect("an address");
    let listener = Listener::new(listener, ports::options("dns", ListenMetrics::default()));
    tokio::spawn(serve_tcp(Arc::new(resolver(Vec::new(), false).await), listener));
    let mut stream = TcpStream::connect(address).await.expect("connect");
    let request = request("tea.shop");
    // Two requests on one connection.
    for _ in 0..2 {
        stream.write_u16(u16::try_from(request.len()).expect("short")).await.expect("send");
        stream.write_all(&request).await.expect("send");
        let mut response = vec![0; usize::from(stream.read_u16().await.expect("receive"))];
        stream.read_exact(&mut response).await.expect("receive");
        assert_eq!(Packet::parse(&response).expect("a reply").answers.len(), 1);
    }
}

#[test]
fn localhost_is_the_loopback_of_the_name_servers_families() {
    let servers = |all: &[&str]| all.iter().map(|server| server.parse().expect("an address")).collect::<Vec<_>>();
    let listens = |address: &str, all: &[&str]| -> Vec<String> {
        let addresses = super::listen_addresses(address, &servers(all)).expect("addresses");
        addresses.iter().map(ToString::to_string).collect()
    };
    assert_eq!(listens("localhost:15053", &["10.0.0.1:53"]), ["127.0.0.1:15053"]);
    assert_eq!(listens("localhost:15053", &["10.0.0.1:53", "[fd00::1]:53"]), ["127.0.0.1:15053", "[::1]:15053"]);
    assert_eq!(listens("localhost:15053", &[]), ["127.0.0.1:15053"]);
    assert_eq!(listens("10.1.1.1:53", &[]), ["10.1.1.1:53"]);
    assert!(super::listen_addresses("nowhere", &[]).is_err());
}
