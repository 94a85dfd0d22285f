//! `why-not`: one reason a case.

use serde_json::Value;
use sluice_testkit::wait::until_async;

use super::mesh::{AnswersFixture, RATINGS_V1};

fn findings(answer: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let findings = answer["findings"].as_array().expect("findings");
    findings.iter().map(|finding| (text(&finding["reason"]), text(&finding["object"]["object"]))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_reason_names_its_object() {
    let mesh = AnswersFixture::start().await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    let _limited = mesh.connect("limited-1", "limited").await;
    for (arguments, reason, object) in [
        (&["cart-7f.shop", "host", "vault.bank"][..], "not-exported", "Service/bank/vault"),
        (
            &["cart-7f.shop", "cluster", "outbound|80||vault.bank.svc.cluster.local"],
            "not-exported",
            "Service/bank/vault",
        ),
        (&["limited-1.shop", "host", "teller.bank"], "not-imported", "Sidecar/shop/limited"),
        (&["cart-7f.shop", "host", "secret.hidden"], "namespace-not-discovered", "Service/hidden/secret"),
        (&["cart-7f.shop", "Service/hidden/secret"], "namespace-not-discovered", "Service/hidden/secret"),
        (&["cart-7f.shop", "VirtualService/shop/broken"], "rejected", "VirtualService/shop/broken"),
        (&["cart-7f.shop", "vs/ratings-second"], "shadowed", "VirtualService/shop/ratings-second"),
        (&["cart-7f.shop", "endpoint", "10.0.1.2"], "no-ready-endpoints", ""),
        (&["cart-7f.shop", "host", "sleepy"], "no-ready-endpoints", "Service/shop/sleepy"),
        (
            &["cart-7f.shop", "cluster", "outbound|81||ratings.shop.svc.cluster.local"],
            "mismatch",
            "Service/shop/ratings",
        ),
        (&["cart-7f.shop", "cluster", "outbound|80|v3|ratings.shop.svc.cluster.local"], "not-declared", ""),
        (&["cart-7f.shop", "host", "nothing.shop"], "not-declared", ""),
        (&["cart-7f.shop", "route", "vault.bank:80"], "not-exported", "Service/bank/vault"),
        (&["cart-7f.shop", "Sidecar/shop/limited"], "not-selected", "Sidecar/shop/limited"),
        (&["cart-7f.shop", "endpoint", "10.9.9.9"], "not-declared", ""),
    ] {
        let arguments: Vec<&str> = std::iter::once("why-not").chain(arguments.iter().copied()).collect();
        let answer = mesh.answer(&arguments).await;
        let found = findings(&answer);
        let is_expected = |(found, of): &(String, String)| found == reason && (object.is_empty() || of == object);
        assert!(found.iter().any(is_expected), "{arguments:?}: {reason} of {object} is not in {answer}");
    }
    // The older object is named.
    let answer = mesh.answer(&["why-not", "cart-7f.shop", "vs/shop/ratings-second"]).await;
    assert!(answer["findings"].to_string().contains("VirtualService/shop/ratings has precedence"), "{answer}");
    // Similar hosts are named.
    let answer = mesh.answer(&["why-not", "cart-7f.shop", "host", "rating.shop"]).await;
    assert!(answer["findings"].to_string().contains("ratings.shop.svc.cluster.local"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_proxy_has_and_acknowledged_is_not_absent() {
    let mesh = AnswersFixture::start().await;
    let mut cart = mesh.connect("cart-7f", "cart").await;
    for arguments in [&["cluster", RATINGS_V1][..], &["route", "ratings.shop:80"], &["VirtualService/shop/ratings"]] {
        let arguments: Vec<&str> = ["why-not", "cart-7f.shop"].iter().chain(arguments).copied().collect();
        // The server may not have processed the acknowledgement yet.
        let told = async || {
            let answer = mesh.ctl(&arguments).await;
            (answer.code == 4 && answer.out.contains("It is not absent")).then_some(())
        };
        until_async(&format!("{arguments:?}: it is not absent"), told).await;
    }
    // A proxy that withholds its acknowledgement is a reason.
    cart.withhold();
    let updates = cart.updates();
    mesh.route_to(2, "v2");
    cart.updated_after(updates).await;
    let answer = mesh.answer(&["why-not", "cart-7f.shop", "route", "ratings.shop:80"]).await;
    assert_eq!(findings(&answer), [("not-acknowledged".to_owned(), String::new())], "{answer}");
}
