//! A TokenReview service that does not answer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol};
use sluice_testkit::api_server::{ApiServer, WrongAnswer};
use sluice_testkit::secure::{self, CertificateRequest, ClientTls, signing_request};
use sluice_testkit::server::{Options, Sluiced};
use sluice_testkit::wait::until;
use tonic::transport::Channel;

const REVIEW_TIMEOUT: Duration = Duration::from_secs(1);
const CREATE_REVIEW: &str = "create tokenreviews";

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name},
        "spec": {"clusterIP": "10.96.0.9", "ports": [{"name": "http", "port": 80}]},
    })
}

fn node() -> Identity {
    let id = "sidecar~10.0.0.1~pod-1.shop~shop.svc.cluster.local";
    let metadata = json!({"NAMESPACE": "shop", "SERVICE_ACCOUNT": "cart", "CLUSTER_ID": "Kubernetes"});
    Identity::of_node(&json!({"id": id, "metadata": metadata})).expect("a node")
}

fn reviewed(api: &ApiServer, token: &str) {
    let extra = json!({
        "authentication.kubernetes.io/pod-name": ["pod-1"], "authentication.kubernetes.io/pod-uid": ["u"],
    });
    let user = json!({
        "username": "system:serviceaccount:shop:cart", "groups": ["system:serviceaccounts"], "extra": extra,
    });
    api.review(token, json!({"authenticated": true, "audiences": ["istio-ca"], "user": user}));
}

async fn open(channel: &Channel, token: &str) -> anyhow::Result<AdsStream> {
    let mut stream = AdsStream::open_with_token(channel.clone(), Protocol::Delta, node(), token)?;
    // The server may have rejected the stream already; the next message tells.
    let _ = stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new());
    stream.next().await?;
    Ok(stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn hung_token_reviews_delay_no_connected_proxy_and_refuse_new_callers_in_time() {
    let api = ApiServer::start().await.expect("a server");
    api.apply(service("cart"));
    for token in ["first", "second", "third"] {
        reviewed(&api, token);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = directory.path().join("kubeconfig");
    api.write_kubeconfig(&kubeconfig).expect("a kubeconfig");
    let args = ["--secureGRPCAddr=127.0.0.1:0".to_owned(), format!("--tokenReviewTimeout={REVIEW_TIMEOUT:?}")];
    let options = Options { kubeconfig: Some(kubeconfig), args: args.into(), ..Options::new(directory.path()) };
    let sluiced = Sluiced::start(&options).await.expect("it starts");
    let secret = until("the authority is created", || api.get("", "secrets", "istio-system", "istio-ca-secret")).await;
    let root = STANDARD.decode(secret["data"]["ca-cert.pem"].as_str().expect("a certificate")).expect("base64");
    let root = String::from_utf8(root).expect("PEM");
    let secure = sluiced.secure.expect("the port is open");
    let connect = async || {
        secure::connect(secure, "istiod.istio-system.svc", &root, &ClientTls::default()).await.expect("TLS handshake")
    };
    let channel = connect().await;
    let mut connected = open(&channel, "first").await.expect("a stream");
    let memory = sluiced.watch_memory().expect("it runs");

    api.answer_wrongly(CREATE_REVIEW, Some(WrongAnswer::Nothing));
    let (_, csr) = signing_request().expect("a request");
    let started = Instant::now();
    let new_stream = open(&channel, "second");
    let new_certificate = CertificateRequest::with_token(&csr, "third").send(&channel);
    let change = async {
        api.apply(service("till"));
        let update = connected.next().await.expect("no error").expect("a response");
        assert!(update.resources.iter().any(|(name, ..)| name.contains("till.shop")), "another service is sent");
        started.elapsed()
    };
    let (new_stream, new_certificate, changed) = tokio::join!(new_stream, new_certificate, change);
    assert!(new_stream.is_err() && new_certificate.is_err(), "callers without a review are refused");
    let refused = started.elapsed();
    assert!(refused >= REVIEW_TIMEOUT && changed < refused, "{changed:?} {refused:?}");
    assert_eq!(sluiced.get("/ready").await.expect("an answer").0, 200);

    api.answer_wrongly(CREATE_REVIEW, None);
    open(&channel, "second").await.expect("reviewed after the fault");
    CertificateRequest::with_token(&csr, "third").send(&channel).await.expect("issued after the fault");
    api.apply(service("later"));
    connected.next().await.expect("no error").expect("a response");
    memory.check_growth("hung token reviews").expect("bounded memory");
}
