//! The Kubernetes source against an API server over real HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue, header};
use serde_json::{Value, json};
use sluice_auth::{Authenticator, Call, ReviewedTokens, TrustDomain, Verdict};
use sluice_authority::{
    AuthorityConfig, AuthorityKeeper, AuthorityMetrics, BundleWriter, KubernetesSigner, SignerConfig, TrustBundle,
    TrustBundleWriter, WebhookConfigurationWriter, WebhookKind,
};
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{GraphOptions, build};
use sluice_kube::{Election, KubeOptions, Lock, ROOTS_LOCK};
use sluice_model::{Kind, Namespace, ObjectKey};
use sluice_parse::KINDS;
use sluice_sources::kube::KubeSource;
use sluice_testkit::api_server::{self, ApiServer, Right};
use sluice_testkit::wait::until;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::gateway_api::{write_all_statuses, write_gateway_api};
use crate::kube_suite::addresses::{allocate, service_entry};
use crate::kube_suite::secret_access::SecretReviewFixture;
use crate::kube_suite::source::{self, Record, RunningSource, options};
use crate::kube_writes;

impl Record {
    pub(crate) fn is_synced(&self, kind: Kind) -> bool {
        self.synced.contains(&kind)
    }

    pub(crate) fn names(&self, kind: Kind) -> Vec<&str> {
        self.objects.get(&kind).into_iter().flat_map(BTreeMap::keys).map(String::as_str).collect()
    }
}

impl RunningSource<ApiServer> {
    pub(crate) fn start_fake(server: ApiServer) -> Self {
        Self::start_with(server, options())
    }

    pub(crate) fn start_with(server: ApiServer, options: KubeOptions) -> Self {
        let client = client_of(server.address());
        Self::run(server, client, options)
    }

    /// Reads the server through the proxy at an address, as the control plane does.
    pub(crate) fn start_behind(server: ApiServer, proxy: SocketAddr) -> Self {
        Self::run(server, client_of(proxy), KubeOptions::default())
    }
}

/// The client of the control plane, for the API server at an address.
pub(crate) fn client_of(address: SocketAddr) -> kube::Client {
    let uri = format!("http://{address}").parse().expect("a URI");
    sluice_kube::client(kube::Config::new(uri)).expect("a client")
}

pub(crate) fn service(name: &str) -> Value {
    source::service("n", name)
}

pub(crate) fn virtual_services() -> api_server::ResourceKind {
    api_server::ResourceKind {
        group: "networking.istio.io",
        versions: vec!["v1beta1", "v1"],
        name: "VirtualService",
        plural: "virtualservices",
    }
}

pub(crate) fn virtual_service(name: &str) -> Value {
    source::virtual_service("n", name)
}

#[tokio::test(flavor = "multi_thread")]
async fn bookmarks_avoid_lists() {
    let server = ApiServer::start().await.expect("a server");
    server.apply(service("a"));
    let running = RunningSource::start_fake(server);
    running.sink.synced().await;
    let lists = running.server.count("list", "services");
    // Changes of other kinds raise the resource version; bookmarks report it to watches of services.
    for name in ["x", "y", "z"] {
        running.server.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    }
    running.sink.until("the namespaces are read", |record| record.names(Kind::Namespace).len() == 3).await;
    let version = running.server.version();
    until("a bookmark is sent", || (running.server.bookmarked("services") >= version).then_some(())).await;
    running.server.compact();
    running.server.disconnect();
    running.server.apply(service("b"));
    running.sink.until("the change arrives", |record| record.names(Kind::Service).len() == 2).await;
    assert_eq!(running.server.count("list", "services"), lists, "the bookmark was new enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_and_expired_lists_are_read_completely() {
    let server = ApiServer::start().await.expect("a server");
    for name in ["a", "b", "c", "d", "e"] {
        server.apply(service(name));
    }
    server.slow_lists(Duration::from_millis(150));
    let running = RunningSource::start_fake(server);
    until("the second page is requested", || (running.server.count("list", "services") >= 2).then_some(())).await;
    // The continue token of the first page expires.
    running.server.compact();
    running.server.slow_lists(Duration::ZERO);
    let record = running.sink.synced().await;
    assert_eq!(record.names(Kind::Service).len(), 5);
    assert!(record.deleted.is_empty());
}

/// Waits until `status.addresses` of a ServiceEntry has that many addresses, and returns them.
async fn written(server: &ApiServer, name: &str, count: usize) -> Vec<Value> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let object = server.get("networking.istio.io", "serviceentries", "n", name).expect("it is there");
        let addresses = object["status"]["addresses"].as_array().cloned();
        if let Some(addresses) = addresses.filter(|addresses| addresses.len() == count) {
            return addresses;
        }
        assert!(Instant::now() < deadline, "{object}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// With `ISTIO_WATCH_NAMESPACE`, no other namespace is read but that of the control plane, for the mesh config.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_watched_namespace_is_read() {
    let server = ApiServer::start().await.expect("a server");
    define_kinds(&server);
    for namespace in ["shop", "bank"] {
        server.apply(source::service(namespace, "cart"));
    }
    let of_shop =
        KubeSource { namespace: Some("shop".into()), ..source::source(client_of(server.address()), options()) };
    let running = RunningSource::of(server, of_shop);
    running.sink.synced().await;
    for namespace in ["bank", "shop"] {
        running.server.apply(source::service(namespace, "till"));
    }
    let services = running.sink.until("the new Service arrives", |record| record.names(Kind::Service).len() > 1).await;
    assert_eq!(services.names(Kind::Service), ["shop/cart", "shop/till"]);
    for request in running.server.requests().into_keys().filter(|it| matches!(it.verb.as_str(), "list" | "watch")) {
        let is_cluster_scoped = KINDS.iter().any(|info| info.plural == request.resource && !info.namespaced);
        let expected = match request.resource.as_str() {
            "configmaps" => "istio-system",
            "customresourcedefinitions" => "",
            _ if is_cluster_scoped => "",
            _ => "shop",
        };
        assert_eq!(request.namespace, expected, "{request:?}");
    }
}

/// Defines the kinds of CustomResourceDefinitions.
fn define_kinds(server: &ApiServer) {
    for info in KINDS.iter().filter(|info| info.is_custom() && info.group != "networking.k8s.io") {
        let (group, versions) = (info.group, info.versions.to_vec());
        server.define(api_server::ResourceKind { group, versions, name: info.name, plural: info.plural }, true);
    }
}

/// Every right in the chart is used, and none is missing.
#[tokio::test(flavor = "multi_thread")]
async fn the_chart_grants_exactly_the_rights_used() {
    let server = ApiServer::start().await.expect("a server");
    define_kinds(&server);
    server.apply(service_entry("n", "one", json!({}), None));
    let running = RunningSource::start_fake(server);
    running.sink.synced().await;
    let allocating = allocate(client_of(running.server.address()), running.server.client().expect("a client"));
    written(&running.server, "one", 2).await;
    drop(allocating);
    run_authority(&running.server).await;
    patch_webhooks(&running.server).await;
    kube_writes::register_workload(&running.server).await;
    kube_writes::write_ingress_status(&running.server).await;
    kube_writes::write_reconciled_conditions(&running.server, client_of(running.server.address())).await;
    let writing = write_gateway_api(client_of(running.server.address()), running.server.client().expect("a client"));
    write_all_statuses(&running.server).await;
    drop(writing);
    let reviewing = SecretReviewFixture::start([("c".into(), running.server.client().expect("a client"))].into());
    reviewing.connect("c", "edge", "gateway");
    reviewing.answered("c", "gateway", false).await;
    let granted = granted();
    let compare = || {
        let requests = running.server.requests().into_keys();
        let used: BTreeSet<_> = requests.map(|it| (it.namespace, it.group, it.resource, it.verb)).collect();
        assert!(used.len() > 10, "{used:?}");
        // A right in all namespaces includes the right in each.
        let (mut missing, mut unused) = (Vec::new(), granted.clone());
        for right in used {
            let everywhere = (String::new(), right.1.clone(), right.2.clone(), right.3.clone());
            match [right.clone(), everywhere].into_iter().find(|right| granted.contains(right)) {
                Some(right) => drop(unused.remove(&right)),
                None => missing.push(right),
            }
        }
        (missing, unused)
    };
    // Watches begin after the lists.
    until("every right is used", || compare().1.is_empty().then_some(())).await;
    let (missing, unused) = compare();
    assert!(missing.is_empty() && unused.is_empty(), "missing: {missing:?}\nunused: {unused:?}");
}

/// Writes roots into a webhook configuration of each kind.
async fn patch_webhooks(server: &ApiServer) {
    for (kind, name) in
        [("MutatingWebhookConfiguration", "rev.sidecar-injector.istio.io"), ("ValidatingWebhookConfiguration", "v")]
    {
        server.apply(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": "w", "labels": {"istio.io/rev": "default"}},
            "webhooks": [
                {"name": name, "clientConfig": {"service": {"name": "istiod"}}, "failurePolicy": "Ignore"},
            ],
        }));
    }
    let (_keep, bundle) = watch::channel(TrustBundle { roots: "roots".to_owned(), ..TrustBundle::default() });
    let (client, kinds) = (server.client().expect("a client"), vec![WebhookKind::Mutating, WebhookKind::Validating]);
    let metrics = AuthorityMetrics::default();
    let control_plane = ("c".into(), "istio-system".into(), "default".into());
    let writer = WebhookConfigurationWriter::new(client, control_plane, kinds, bundle, &metrics);
    let stop = CancellationToken::new();
    let writing = tokio::spawn(writer.run(stop.clone()));
    // Validation fails closed once the API server refuses a marked object in a dry run.
    for (resource, policy) in [("mutatingwebhookconfigurations", "Ignore"), ("validatingwebhookconfigurations", "Fail")]
    {
        until(resource, || {
            let object = server.get("admissionregistration.k8s.io", resource, "", "w")?;
            let webhook = &object["webhooks"][0];
            (webhook["clientConfig"]["caBundle"] == "cm9vdHM=" && webhook["failurePolicy"] == policy).then_some(())
        })
        .await;
    }
    assert_eq!(server.get("networking.istio.io", "gateways", "istio-system", "invalid-gateway"), None);
    stop.cancel();
    writing.await.expect("no panic");
}

/// The requests of the certificate authority: it creates, reads and renews its Secret, writes roots, and reviews a
/// token.
async fn run_authority(server: &ApiServer) {
    let client = || server.client().expect("a client");
    let config = AuthorityConfig {
        check_interval: Duration::from_millis(20),
        // Every root is due for renewal.
        grace_percent: 100,
        jitter: false,
        ..AuthorityConfig::default()
    };
    let cluster = Some((client(), "istio-system".into()));
    let keeper = AuthorityKeeper::open(config, cluster, "td").await.expect("an authority");
    let (engine, handles) = Engine::start(EngineOptions::default(), |builder| build(builder, &GraphOptions::default()));
    engine.transaction(|tx| handles.inputs.mark_all_synced(tx));
    handles.inputs.namespaces.set(ObjectKey::new("east", "", "shop"), Namespace::default());
    let bundle = |text: &str| TrustBundle { roots: text.to_owned(), ..TrustBundle::default() };
    let (sender, receiver) = watch::channel(bundle("one"));
    let (feed, namespaces) = (engine.feed(), handles.namespaces.clone());
    let writer = BundleWriter::new(client(), "east".into(), None, feed, namespaces, receiver, ("roots", None));
    let stop = CancellationToken::new();
    tokio::spawn(keeper.run(stop.clone()));
    tokio::spawn(writer.run(stop.clone()));
    let until = async |verb: &str, resource: &str| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while server.count(verb, resource) == 0 {
            assert!(Instant::now() < deadline, "{verb} {resource}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until("update", "secrets").await;
    until("create", "configmaps").await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.count("patch", "configmaps") == 0 {
        assert!(Instant::now() < deadline, "the ConfigMap is restored");
        sender.send_replace(bundle(&format!("{:?}", Instant::now())));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let clusters = BTreeMap::from([("east".into(), client())]);
    let trust_domain = TrustDomain::new("td".into());
    let tokens =
        ReviewedTokens::new(clusters.into(), "east".into(), BTreeMap::new(), &["istio-ca".to_owned()], trust_domain);
    let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static("Bearer token"))]);
    let verdict = tokens.authenticate(&Call { headers: &headers, peer: None, certificates: &[] }).await;
    assert!(matches!(verdict, Verdict::Rejected(_)));
    // The election acquires the locks, and renews them.
    let election =
        Election::new(Some(client()), "istio-system".into(), "a", "").with_lease_duration(Duration::from_millis(100));
    let lead = |lock: Lock| {
        let election = election.clone();
        tokio::spawn(election.lead(lock, stop.clone(), |term| async move { term.ended().cancelled().await }))
    };
    let leading = [lead(ROOTS_LOCK), lead(Lock::webhooks(""))];
    until("update", "configmaps").await;
    until("update", "leases").await;
    stop.cancel();
    for leading in leading {
        leading.await.expect("no panic");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_of_a_cluster_signer_are_granted_only_with_one() {
    let server = ApiServer::start().await.expect("a server");
    let client = || server.client().expect("a client");
    let config = SignerConfig { signer: "a/b".into(), timeout: Duration::from_secs(1), ..SignerConfig::default() };
    let signer = KubernetesSigner::new(client(), config, sluice_ca::LifetimeLimits::default());
    let key = rcgen::KeyPair::generate().expect("a key");
    let identity = "spiffe://td/ns/shop/sa/cart";
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.subject_alt_names = vec![rcgen::SanType::URI(identity.try_into().expect("a name"))];
    let request = params.serialize_request(&key).expect("a request").pem().expect("the PEM text");
    signer.issue(&request, &[identity.to_owned()], 0, "").await.expect_err("no signer answers");
    let cleaning = tokio::spawn(async move { signer.delete_left_over_requests().await });
    until("objects that are left over are listed", || {
        (server.count("list", "certificatesigningrequests") > 0).then_some(())
    })
    .await;
    cleaning.abort();
    let roots = |text: &str| TrustBundle { roots: text.to_owned(), ..TrustBundle::default() };
    let (sender, receiver) = watch::channel(roots("one"));
    let stop = CancellationToken::new();
    let writing = tokio::spawn(TrustBundleWriter::new(client(), receiver).run(stop.clone()));
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.count("update", "clustertrustbundles") == 0 {
        assert!(Instant::now() < deadline, "it is written");
        sender.send_replace(roots(&format!("{:?}", Instant::now())));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.cancel();
    writing.await.expect("no panic");
    let requests = server.requests().into_keys().map(|it| (it.namespace, it.group, it.resource, it.verb));
    let mut granted = api_server::granted_by_rules("", rules!("signer"));
    granted.extend(api_server::granted_by_rules("", rules!("trust-bundle")));
    // The API server itself checks the rights to approve and to sign for a signer.
    granted.retain(|(_, _, resource, _)| resource != "signers");
    assert_eq!(requests.collect::<BTreeSet<_>>(), granted);
}

/// Rights of the chart: namespace (empty is all), group, resource, verb.
fn granted() -> BTreeSet<Right> {
    let mut granted = api_server::granted_by_rules("", rules!("cluster"));
    granted.extend(api_server::granted_by_rules("", rules!("alpha-gateway-api")));
    granted.extend(api_server::granted_by_rules("", rules!("multi-cluster")));
    let mut inference = api_server::granted_by_rules("", rules!("inference-extension"));
    // An object that is applied and does not exist is created by a request to patch it.
    inference.retain(|(_, _, resource, verb)| resource != "services" || verb != "create");
    granted.extend(inference);
    granted.extend(api_server::granted_by_rules("istio-system", rules!("namespace")));
    granted
}
