//! `history`: objects, resources and proxies of each change.

use super::mesh::AnswersFixture;

#[tokio::test(flavor = "multi_thread")]
async fn change_has_its_object_and_the_proxies_that_it_concerned() {
    let mesh = AnswersFixture::start().await;
    let mut cart = mesh.connect("cart-7f", "cart").await;
    let updates = cart.updates();
    mesh.route_to(2, "v2");
    cart.updated_after(updates).await;
    let answer = mesh.answer(&["history", "--object", "VirtualService/shop/ratings"]).await;
    let changes = answer["changes"].as_array().expect("changes");
    assert_eq!(changes.len(), 2, "the initial version and the edit: {answer}");
    let edit = &changes[1];
    let objects = edit["objects"].as_array().expect("objects");
    assert_eq!(objects.len(), 1, "{edit}");
    assert_eq!(objects[0]["object"], "VirtualService/shop/ratings");
    assert_eq!(objects[0]["generation"], 2);
    assert_eq!(edit["proxies"]["names"], serde_json::json!(["cart-7f.shop"]), "{edit}");
    let types: Vec<_> = edit["resources"].as_array().expect("types").iter().map(|it| it["type"].clone()).collect();
    assert_eq!(types, ["rds"], "a route changes no other type: {edit}");

    // A change that no proxy sees concerns none.
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: later, namespace: hidden}\nspec: {clusterIP: 10.0.0.9, ports: [{port: 80}]}\n";
    std::fs::write(mesh.directory.path().join("later.yaml"), service).expect("written");
    let waited = mesh.ctl(&["wait", "Service/hidden/later", "--for=applied"]).await;
    assert_eq!(waited.code, 0, "{}{}", waited.out, waited.errors);
    let last = mesh.answer(&["history", "--limit=1"]).await;
    assert_eq!(
        (last["changes"][0]["objects"][0]["object"].as_str(), &last["more"]),
        (Some("Service/hidden/later"), &true.into())
    );
    assert_eq!(last["changes"][0]["proxies"]["count"], 0, "{last}");

    let of_proxy = mesh.answer(&["history", "--proxy=cart-7f.shop", "--limit=1"]).await;
    assert_eq!(of_proxy["changes"][0]["epoch"], edit["epoch"], "{of_proxy}");
    let table = mesh.ctl(&["history", "--since=1h"]).await;
    assert_eq!(table.code, 0, "{}", table.errors);
    let line = table.out.lines().find(|line| line.contains("route.yaml:1") && line.contains("1 rds"));
    assert!(line.is_some_and(|line| line.contains("cart-7f.shop")), "{}", table.out);

    let none = mesh.ctl(&["history", "--object=vs/shop/nothing"]).await;
    assert_eq!(none.code, 1, "{}{}", none.out, none.errors);
}
