//! `why`: objects, fields, the last change, progress.

use serde_json::{Value, json};

use super::mesh::{AnswersFixture, RATINGS_HOST, RATINGS_V1};

/// The objects that made it, by name.
fn made_by(answer: &Value) -> Vec<&str> {
    answer["madeBy"].as_array().expect("objects").iter().filter_map(|made| made["object"].as_str()).collect()
}

fn made<'a>(answer: &'a Value, object: &str) -> &'a Value {
    let objects = answer["madeBy"].as_array().expect("objects");
    objects.iter().find(|made| made["object"] == object).unwrap_or_else(|| panic!("{object} is not in {answer}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_of_a_subset_is_made_by_its_rule_and_its_service() {
    let mesh = AnswersFixture::start().await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    let answer = mesh.answer(&["why", "cart-7f.shop", "cluster", RATINGS_V1]).await;
    let rule = made(&answer, "DestinationRule/shop/ratings");
    assert_eq!(rule["required"], true, "{answer}");
    let source = rule["source"].as_str().expect("a source");
    assert!(source.contains("objects.yaml:"), "{source}");
    let through: Vec<_> = rule["through"].as_array().expect("collections").iter().filter_map(Value::as_str).collect();
    assert_eq!(through.first(), Some(&"raw_destination_rules"), "{through:?}");
    assert!(through.contains(&"destination_rules"), "{through:?}");
    assert_eq!(made(&answer, "Service/shop/ratings")["required"], true);
    for other in ["Service/shop/sleepy", "VirtualService/shop/ratings", "DestinationRule/shop/other"] {
        assert!(!made_by(&answer).contains(&other), "{other} did not make it: {answer}");
    }
    assert_eq!(answer["progress"]["acked"], true, "{answer}");
    assert_eq!((&answer["holders"]["interested"], &answer["holders"]["acked"]), (&json!(1), &json!(1)));
    assert_eq!(answer["note"], Value::Null, "the effects are known: {answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn field_of_a_route_is_made_by_the_virtual_service_that_changed_last() {
    let mesh = AnswersFixture::start().await;
    let mut cart = mesh.connect("cart-7f", "cart").await;
    let path = format!("virtualHosts[{RATINGS_HOST}].routes[0].route.cluster");
    let question = ["why", "deploy/cart.shop", "route", "80", &path];
    let before = mesh.answer(&question).await;
    assert_eq!(before["value"], RATINGS_V1, "{before}");

    let updates = cart.updates();
    mesh.route_to(2, "v2");
    cart.updated_after(updates).await;
    let waited = mesh.ctl(&["wait", "vs/shop/ratings", "--generation=2"]).await;
    assert_eq!(waited.code, 0, "{}{}", waited.out, waited.errors);
    let answer = mesh.answer(&question).await;
    assert_eq!(answer["value"], "outbound|80|v2|ratings.shop.svc.cluster.local");
    let route = made(&answer, "VirtualService/shop/ratings");
    assert!(route["source"].as_str().is_some_and(|source| source.contains("route.yaml:1")), "{route}");
    assert_eq!(route["generation"], 2);
    assert!(route["fields"].to_string().contains("route.cluster"), "{route}");
    assert!(!made_by(&answer).contains(&"VirtualService/shop/ratings-second"), "{answer}");

    let change = &answer["lastChange"];
    assert!(change["epoch"].as_u64() > before["lastChange"]["epoch"].as_u64(), "{change}");
    let objects = change["objects"].as_array().expect("objects");
    assert_eq!(objects.len(), 1, "{change}");
    assert_eq!((&objects[0]["object"], &objects[0]["deleted"]), (&json!("VirtualService/shop/ratings"), &json!(false)));
    assert!(change["at"].as_str().is_some_and(|at| at.starts_with("20")), "{change}");

    // The same by a domain of the virtual host, for people.
    let table =
        mesh.ctl(&["why", "cart-7f.shop", "rds", "80", "virtualHosts[ratings.shop].routes[0].route.cluster"]).await;
    assert_eq!(table.code, 0, "{}", table.errors);
    for text in ["VirtualService/shop/ratings", "route.yaml:1", "Last change: epoch ", "This proxy: acknowledged it"] {
        assert!(table.out.contains(text), "{text} is not in\n{}", table.out);
    }
    let yaml = mesh.ctl(&["why", "cart-7f.shop", "rds", "80", "name", "-o", "yaml"]).await;
    assert!(yaml.code == 0 && yaml.out.contains("value: '80'"), "{}{}", yaml.out, yaml.errors);
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_without_an_answer_have_their_exit_codes_and_similar_names() {
    let mesh = AnswersFixture::start().await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    for (arguments, code, text) in [
        (
            &["why", "cart-7f.shop", "cluster", "outbound|80||ratings"][..],
            1,
            "outbound|80||ratings.shop.svc.cluster.local",
        ),
        (&["why", "card-7f.shop", "cluster", RATINGS_V1], 1, "did you mean \"cart-7f.shop\"?"),
        (&["why", "cart-7f.shop", "cluster", RATINGS_V1, "nam"], 1, "did you mean"),
        (&["why", "cart-7f.shop", "clutser", RATINGS_V1], 2, "type \"clutser\" is unknown"),
        (&["why", "cart-7f.shop", "cluster", RATINGS_V1, "a..b"], 2, "field name is missing"),
        (&["why", "cart-7f.shop", "cluster"], 2, "NAME"),
    ] {
        let answer = mesh.ctl(arguments).await;
        assert_eq!(answer.code, code, "{arguments:?}: {}{}", answer.out, answer.errors);
        assert!(answer.errors.contains(text), "{arguments:?}: {text} is not in {}", answer.errors);
    }
    let (status, text) = mesh.server.get("/debug/why?proxy=cart-7f.shop&type=cds").await.expect("an answer");
    assert_eq!((status, text.trim()), (400, "parameter name is missing"));
}
