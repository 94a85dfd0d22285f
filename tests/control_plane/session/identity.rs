//! The authenticated identity of a stream, and the resources it receives because of it (X20).

use std::time::Instant;

use sluice_auth::Caller;
use sluice_model::{Identity, ProxyKey, ResourceType};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_xds::AdsStream;
use sluice_xds_protocol::{Request, StreamError, XdsProtocol};

use super::fixture::{SIDECAR, SessionFixture};

fn orchard_identity() -> Identity {
    Identity::new("cluster.local", "orchard", "picker")
}

fn caller(identities: &[Identity]) -> Caller {
    Caller { authenticator: Some("forwarded certificate"), identities: identities.to_vec(), ..Caller::default() }
}

fn open(mesh: &SessionFixture, caller: Caller) -> (AdsStream, Result<(), StreamError>) {
    let mut stream = mesh.server.open(XdsProtocol::Sotw, caller).expect("ready");
    let node = Some(Node { id: SIDECAR.into(), ..Node::default() });
    let request = Request { node, type_url: ResourceType::Cluster.type_url().into(), ..Request::default() };
    let accepted = stream.request(request, Instant::now());
    (stream, accepted)
}

fn names(stream: &mut AdsStream) -> Option<Vec<String>> {
    let response = stream.poll(Instant::now())?;
    Some(response.versions().into_iter().map(|(name, _)| name.to_string()).collect())
}

#[test]
fn a_caller_with_the_identity_of_another_proxy_is_rejected() {
    let mesh = SessionFixture::new();
    let impersonator = Identity::new("cluster.local", "forest", "picker");
    let (stream, accepted) = open(&mesh, caller(&[impersonator]));
    let Err(StreamError::Denied(reason)) = accepted else { panic!("{accepted:?}") };
    assert!(reason.contains("orchard/") && reason.contains("spiffe://cluster.local/ns/forest/sa/picker"), "{reason}");
    assert_eq!(stream.proxy(), None, "it is not registered as a proxy");
    assert!(matches!(open(&mesh, caller(&[])).1, Err(StreamError::Denied(_))), "an identity outside the mesh");
    assert!(mesh.proxies.0.lock().unwrap().is_empty(), "the proxy is not registered");
    assert_eq!(open(&mesh, caller(&[orchard_identity()])).1, Ok(()));
    assert_eq!(open(&mesh, Caller::default()).1, Ok(()), "an unauthenticated caller is accepted");
}

#[test]
fn streams_of_one_node_with_different_identities_are_different_proxies() {
    let mesh = SessionFixture::new();
    mesh.cluster("base", "public", "1");
    mesh.cluster("namespace", "private", "1");
    mesh.scope_for(SIDECAR, Some(orchard_identity()), &["namespace", "base"]);
    let second = format!("{SIDECAR}#2");
    mesh.scope(&second, &["base"]);
    mesh.commit();
    let (mut known, _) = open(&mesh, caller(&[orchard_identity()]));
    let (mut unknown, _) = open(&mesh, Caller::default());
    assert_eq!(known.proxy(), Some(&ProxyKey(SIDECAR.into())));
    assert_eq!(unknown.proxy(), Some(&ProxyKey(second.into())));
    assert_eq!(names(&mut known), Some(vec!["private".into(), "public".into()]));
    assert_eq!(names(&mut unknown), Some(vec!["public".into()]));
}

#[test]
fn resources_derived_for_one_identity_are_not_served_to_the_next_identity_of_that_key() {
    let pairs = [
        (Some(orchard_identity()), Caller::default(), None),
        (None, caller(&[orchard_identity()]), Some(orchard_identity())),
    ];
    for (first, caller, identity) in pairs {
        let mesh = SessionFixture::new();
        mesh.cluster("base", "public", "1");
        mesh.cluster("namespace", "private", "1");
        // The store does not know yet that the first stream has ended.
        mesh.scope_for(SIDECAR, first, &["namespace", "base"]);
        mesh.commit();
        let (mut stream, accepted) = open(&mesh, caller);
        assert_eq!((accepted, stream.proxy()), (Ok(()), Some(&ProxyKey(SIDECAR.into()))));
        assert_eq!(names(&mut stream), None, "nothing is sent before its own scope is known");
        mesh.scope_for(SIDECAR, identity, &["base"]);
        mesh.commit();
        assert_eq!(names(&mut stream), Some(vec!["public".into()]));
    }
}
