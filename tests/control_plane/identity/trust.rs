//! Several roots, and which of them workloads trust (P19, X23).

use std::collections::BTreeMap;

use prost::Message;
use serde_json::json;
use sluice_proto::istio::mesh::v1alpha1::ProxyConfig;
use sluice_testkit::ads::{AdsStream, Protocol};
use sluice_testkit::pods::identity::Authority;
use sluice_testkit::secure::{CertificateRequest, ClientTls, signing_request};

use super::mesh::{CART, IdentityFixture};
use super::node;

const TYPE: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";

#[tokio::test(flavor = "multi_thread")]
async fn workloads_are_sent_all_roots_and_new_ones() {
    let other = Authority::new().expect("an authority");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("mesh.yaml");
    std::fs::write(&file, json!({"caCertificates": [{"pem": other.root()}]}).to_string())
        .expect("write the mesh config");
    let mesh_config = format!("--meshConfig={}", file.display());
    let mesh = IdentityFixture::start_with(&[&mesh_config], &[("ISTIO_MULTIROOT_MESH", "true")]).await;
    let (key, csr) = signing_request().expect("a request");
    let token = mesh.token(CART);
    let chain = CertificateRequest::with_token(&csr, &token)
        .send(&mesh.connect(&ClientTls::default()).await)
        .await
        .expect("issued");
    assert_eq!(chain.last(), Some(&mesh.root()), "the chain ends with the root of the authority");
    let channel = mesh.connect(&ClientTls { pair: Some((chain[0].clone(), key)), ..ClientTls::default() }).await;
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut stream = AdsStream::open(channel.clone(), protocol, node("shop", "cart")).expect("a stream");
        stream.subscribe(TYPE, &[], BTreeMap::new()).expect("the stream is open");
        let mut receives = async |expect: Vec<String>| {
            // The roots of both sources may arrive in separate responses.
            loop {
                let update = stream.next().await.expect("the stream continues").expect("an answer");
                stream.ack(&update).expect("the stream is open");
                let roots = update.resources.first().map(|(_, _, any)| {
                    ProxyConfig::decode(any.value.as_slice()).expect("a message").ca_certificates_pem
                });
                if roots.unwrap_or_default() == expect {
                    return;
                }
            }
        };
        let sorted = |mut roots: Vec<String>| {
            roots.sort();
            roots
        };
        let both = vec![mesh.root(), other.root().replace("\r\n", "\n")];
        receives(sorted(both.clone())).await;
        let new = Authority::new().expect("an authority");
        let all = json!({"caCertificates": [{"pem": other.root()}, {"pem": new.root()}]});
        std::fs::write(&file, all.to_string()).expect("write the mesh config");
        receives(sorted([both, vec![new.root().replace("\r\n", "\n")]].concat())).await;
        std::fs::write(&file, json!({"caCertificates": [{"pem": other.root()}]}).to_string()).expect("write it back");
        receives(sorted(vec![mesh.root(), other.root().replace("\r\n", "\n")])).await;
    }
}
