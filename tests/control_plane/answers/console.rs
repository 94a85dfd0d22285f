//! `/console`: the pages show the mesh and its proxies, and what protects them in a browser.

use sluice_testkit::server::request;

use super::mesh::{AnswersFixture, RATINGS_V1};

#[tokio::test(flavor = "multi_thread")]
async fn console_shows_the_mesh_and_why_a_proxy_has_a_resource() {
    let mesh = AnswersFixture::start().await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    mesh.route_to(2, "v2");
    mesh.answer(&["wait", "vs/shop/ratings", "--generation=2"]).await;
    let page = async |path: &str| {
        let (status, text) = mesh.server.get(path).await.expect("an answer");
        assert_eq!(status, 200, "{path}: {text}");
        text
    };
    let proxy = "/console/proxies/cart%2D7f%2Eshop";
    let cluster = "outbound%7C80%7Cv1%7Cratings.shop.svc.cluster.local";
    for (path, expected) in [
        ("/console".to_owned(), vec!["Connected streams</dt><dd>1 ", "aria-current=\"page\">Overview"]),
        ("/console/proxies".to_owned(), vec!["cart-7f.shop", "SYNCED"]),
        (format!("{proxy}?type=cds&q=RATINGS"), vec![RATINGS_V1, "aria-current=\"true\">CDS"]),
        (format!("{proxy}/cds?name={cluster}"), vec!["DestinationRule/shop/ratings", "objects.yaml:"]),
        ("/console/changes".to_owned(), vec!["VirtualService/shop/ratings"]),
        (
            "/console/collections".to_owned(),
            vec!["/console/collections/services", "selected%5Flabels%2Fvirtual%5Fservices"],
        ),
        (
            "/console/collections/selected%5Flabels%2Fvirtual%5Fservices".to_owned(),
            vec!["selected_labels/virtual_services"],
        ),
        ("/console/collections/services?q=ratings".to_owned(), vec!["ratings.shop.svc.cluster.local"]),
    ] {
        let text = page(&path).await;
        for part in expected {
            assert!(text.contains(part), "{path} has {part}: {text}");
        }
        assert!(!text.contains("<style") && !text.contains("<script>") && !text.contains("http://"), "{path}: {text}");
    }
    let none = page(&format!("{proxy}?type=cds&q=absent")).await;
    assert!(none.contains("0 rows") && !none.contains(RATINGS_V1), "{none}");
    for (path, status) in [
        ("/console/proxies/absent", 404),
        ("/console/collections/absent", 404),
        ("/console/proxies?page=0", 400),
        ("/console/collections/services?key=x", 400),
    ] {
        assert_eq!(mesh.server.get(path).await.expect("an answer").0, status, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn console_is_protected_from_other_sites() {
    let mesh = AnswersFixture::start().await;
    let open = async |method: &str, path: &str, headers: &[(&str, &str)]| {
        request(mesh.server.http, method, path, headers, "").await.expect("an answer")
    };
    let page = open("GET", "/console", &[]).await;
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    let embedded = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")];
    assert_eq!(open("GET", "/console/assets/live.js", &embedded).await.status, 403);
    assert_eq!(open("GET", "/console", &[("origin", "http://evil.example")]).await.status, 403);
    let linked = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    assert_eq!(open("GET", "/console", &linked).await.status, 200);
    assert_eq!(open("POST", "/console", &[]).await.status, 405);
}
