//! `wait`: acknowledged, withheld, rejected, unknown objects; the metric.

use sluice_testkit::server::get;

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
