//! `wait`: acknowledged, withheld, rejected, unknown objects; the metric.

use std::collections::BTreeMap;
use std::process::Stdio;

use serde_json::json;
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, Update, connect};
use sluice_testkit::binary::workspace_binary;
use sluice_testkit::server::get;
use sluice_testkit::wait::until_async;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::mesh::AnswersFixture;

/// The metric of the oldest unacknowledged change.
async fn oldest_unacknowledged(mesh: &AnswersFixture) -> f64 {
    let (_, text) = get(mesh.server.monitoring, "/metrics").await.expect("metrics");
    let line = text.lines().find_map(|line| line.strip_prefix("sluice_oldest_unacknowledged_change_seconds "));
    line.expect("the metric").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn change_is_awaited_until_its_proxies_acknowledge_it() {
    let mesh = AnswersFixture::start().await;
    let cart = mesh.connect("cart-7f", "cart").await;
    let mut till = mesh.connect("till-1", "till").await;
    mesh.route_to(2, "v2");
    let answer = mesh.answer(&["wait", "VirtualService/shop/ratings", "--generation=2"]).await;
    assert_eq!(answer["state"], "done", "{answer}");
    assert_eq!((answer["proxies"]["concerned"].as_u64(), answer["proxies"]["acked"].as_u64()), (Some(2), Some(2)));
    assert_eq!(answer["object"]["generation"], 2);

    till.withhold();
    let updates = till.updates();
    mesh.route_to(3, "v1");
    till.updated_after(updates).await;
    let answer = mesh.ctl(&["wait", "vs/shop/ratings", "--generation=3", "--timeout=1s"]).await;
    assert_eq!(answer.code, 4, "{}{}", answer.out, answer.errors);
    assert!(answer.out.contains("acknowledged by 1 of 2 proxies"), "{}", answer.out);
    assert!(answer.out.contains("till-1.shop: rds 80: sent ") && !answer.out.contains("cart-7f"), "{}", answer.out);
    assert!(answer.errors.contains("1 of 2 proxies acknowledged it"), "the progress is shown: {}", answer.errors);
    // Half of the proxies suffice, and none for the object itself.
    for goal in ["acked=50%", "applied"] {
        let answer = mesh.answer(&["wait", "vs/shop/ratings", "--generation=3", "--timeout=5s", "--for", goal]).await;
        assert_eq!(answer["state"], "done", "{goal}: {answer}");
    }
    assert!(oldest_unacknowledged(&mesh).await > 0.5, "the change is older than the wait");

    drop(till);
    let answer = mesh.answer(&["wait", "vs/shop/ratings", "--generation=3", "--timeout=10s"]).await;
    assert_eq!(answer["proxies"]["concerned"].as_u64(), Some(1), "a proxy that left is not awaited: {answer}");
    assert!(oldest_unacknowledged(&mesh).await < 0.5, "all is acknowledged");
    drop(cart);
}

#[tokio::test(flavor = "multi_thread")]
async fn change_is_awaited_although_its_status_is_written_since() {
    let entry = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n\
                 metadata: {name: deli, namespace: shop, generation: 2}\n\
                 spec: {hosts: [deli.example], resolution: STATIC, endpoints: [{address: 10.0.9.9}], \
                 ports: [{name: http, number: 80, protocol: HTTP}]}\n";
    let mesh = AnswersFixture::start().await;
    let mut cart = mesh.connect("cart-7f", "cart").await;
    cart.withhold();
    let updates = cart.updates();
    mesh.add_file("deli.yaml", entry);
    cart.updated_after(updates).await;
    mesh.add_file(
        "deli.yaml",
        &format!("{entry}status: {{addresses: [{{host: other.example, value: 240.240.0.9}}]}}\n"),
    );
    let is_read = async || {
        let (_, text) = get(mesh.server.http, "/debug/collections/service_entries").await.ok()?;
        text.contains("other.example").then_some(())
    };
    until_async("the status is read", is_read).await;
    let answer = mesh.ctl(&["wait", "ServiceEntry/shop/deli", "--generation=2", "--timeout=1s"]).await;
    assert_eq!(answer.code, 4, "{}{}", answer.out, answer.errors);
    assert!(answer.out.contains("acknowledged by 0 of 1 proxy"), "{}", answer.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_and_unknown_objects_have_their_exit_codes() {
    let mesh = AnswersFixture::start().await;
    for (arguments, code, text) in [
        (&["wait", "VirtualService/shop/broken", "--timeout=5s"][..], 1, "spec.hosts"),
        (&["wait", "VirtualService/shop/nothing", "--timeout=300ms"], 4, "is not read yet"),
        (&["wait", "VirtualService/shop/ratings", "--generation=9", "--timeout=300ms"], 4, "is not read yet"),
        (&["wait", "VirtualServce/shop/ratings"], 2, "did you mean \"VirtualService\"?"),
        (&["wait", "vs/ratings"], 2, "KIND/NAMESPACE/NAME"),
        (&["wait", "vs/shop/ratings", "--for", "ready"], 2, "acked=PERCENT%"),
        (&["wait", "vs/shop/ratings", "--timeout", "5"], 2, "a duration has a unit"),
        (&["wait", "vs/ratings", "-n", "shop", "--timeout=5s"], 0, "VirtualService/shop/ratings"),
    ] {
        let answer = mesh.ctl(arguments).await;
        assert_eq!(answer.code, code, "{arguments:?}: {}{}", answer.out, answer.errors);
        let output = format!("{}{}", answer.out, answer.errors);
        assert!(output.contains(text), "{arguments:?}: {text} is not in {output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_is_awaited() {
    let mesh = AnswersFixture::start().await;
    let mut cart = mesh.connect("cart-7f", "cart").await;
    let updates = cart.updates();
    std::fs::remove_file(mesh.directory.path().join("route.yaml")).expect("removed");
    cart.updated_after(updates).await;
    let answer = mesh.answer(&["wait", "vs/shop/ratings", "--timeout=10s"]).await;
    assert_eq!((&answer["state"], &answer["deleted"]), (&"done".into(), &true.into()), "{answer}");
    assert_eq!(answer["proxies"]["acked"].as_u64(), Some(1), "{answer}");
}

const TWIN: &str = "outbound|80||twin.shop.svc.cluster.local";

/// Writes a service and its endpoint.
fn write_twin(mesh: &AnswersFixture, address: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: twin, namespace: shop}}\n\
         spec: {{clusterIP: 10.0.0.9, ports: [{{name: http, port: 80}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: twin-1, namespace: shop, labels: {{kubernetes.io/service-name: twin}}}}\naddressType: IPv4\n\
         ports: [{{name: http, port: 8080}}]\n\
         endpoints: [{{addresses: [{address}], conditions: {{ready: true}}}}]\n"
    );
    mesh.add_file("twin.yaml", &text);
}

/// A stream that subscribes to the endpoints of the service.
async fn endpoint_stream(mesh: &AnswersFixture, pod: &str) -> AdsStream {
    let node = json!({
        "id": format!("sidecar~10.0.9.9~{pod}.shop~shop.svc.cluster.local"),
        "metadata": {"NAME": pod, "NAMESPACE": "shop", "CLUSTER_ID": "Kubernetes"},
    });
    let channel = connect(mesh.server.grpc).await.expect("a connection");
    let identity = Identity::of_node(&node).expect("a node");
    let mut stream = AdsStream::open(channel, Protocol::Delta, identity).expect("a stream");
    stream.subscribe(Kind::Eds.type_url(), &[TWIN.to_owned()], BTreeMap::new()).expect("sent");
    stream
}

/// The update with endpoints of this address. Those before it are acknowledged.
async fn received(stream: &mut AdsStream, address: &str) -> Update {
    loop {
        let update = stream.next().await.expect("a stream").expect("an update");
        let has_address = |value: &[u8]| value.windows(address.len()).any(|part| part == address.as_bytes());
        if update.resources.iter().any(|(_, _, resource)| has_address(&resource.value)) {
            return update;
        }
        stream.ack(&update).expect("sent");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_shows_how_many_proxies_have_acknowledged() {
    let mesh = AnswersFixture::start().await;
    let mut first = endpoint_stream(&mesh, "first").await;
    let mut second = endpoint_stream(&mesh, "second").await;
    write_twin(&mesh, "10.0.1.8");
    for stream in [&mut first, &mut second] {
        let update = received(stream, "10.0.1.8").await;
        stream.ack(&update).expect("sent");
    }
    write_twin(&mesh, "10.0.1.9");
    let of_first = received(&mut first, "10.0.1.9").await;
    let of_second = received(&mut second, "10.0.1.9").await;

    let address = format!("--address=http://{}", mesh.server.http);
    let arguments = ["wait", "EndpointSlice/shop/twin-1", "--timeout=60s", &address];
    let binary = workspace_binary("sluicectl").expect("sluicectl is built");
    let mut command = tokio::process::Command::new(binary);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut wait = command.spawn().expect("sluicectl runs");
    let mut progress = BufReader::new(wait.stderr.take().expect("a pipe")).lines();
    let mut until = async |text: &str| {
        while !progress.next_line().await.expect("a pipe").expect("a line").contains(text) {}
    };
    until("0 of 2 proxies").await;
    first.ack(&of_first).expect("sent");
    until("1 of 2 proxies").await;
    second.ack(&of_second).expect("sent");
    assert!(wait.wait().await.expect("it ends").success());
}
