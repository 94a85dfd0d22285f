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
        ("/console/collections".to_owned(), vec!["/console/collections/services"]),
        ("/console/collections?q=selected_labels".to_owned(), vec!["selected%5Flabels%2Fvirtual%5Fservices"]),
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
async fn mesh_dataflow_and_timeline_are_graphs_with_tables_of_the_same_content() {
    let mesh = AnswersFixture::start_with(&[("more.yaml", include_str!("../browser/mesh.yaml"))]).await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    mesh.route_to(2, "v2");
    mesh.answer(&["wait", "vs/shop/ratings", "--generation=2"]).await;
    let page = async |path: &str| {
        let (status, text) = mesh.server.get(path).await.expect("an answer");
        assert_eq!(status, 200, "{path}: {text}");
        // The SVG, and the tables below it.
        let (graph, tables) = text.split_once("</svg>").expect("a graph");
        (graph.to_owned(), tables.to_owned())
    };
    let (graph, tables) = page("/console/mesh?namespace=shop").await;
    for (part, place) in [
        // A weighted route to subsets of another namespace, and a mirror.
        ("Subset payments.bank.svc.cluster.local subset v1", &graph),
        (">90 %<", &graph),
        ("edge mirror", &graph),
        ("checkout.example</td><td>payments.bank.svc.cluster.local subset v2</td><td class=\"short\">10 %", &tables),
        // A gateway, over a delegate.
        ("Gateway shop/public", &graph),
        ("shop/public</td><td>cart.shop.svc.cluster.local</td><td class=\"short\">100 %", &tables),
        (">VirtualService/shop/cart-routes</a>", &tables),
        // Policies that select workloads of a service, and those of the whole namespace.
        ("AP 1", &graph),
        (">AuthorizationPolicy/shop/cart</a>", &tables),
        ("PeerAuthentication/shop/default</a></div></td><td>shop</td>", &tables),
    ] {
        assert!(place.contains(part), "{part}: {graph}\n{tables}");
    }
    let link = graph.split("href=\"").find(|link| link.contains("collections/services?key=") && link.contains("cart"));
    let link = link.and_then(|link| link.split('"').next()).expect("a link to a service").replace("&amp;", "&");
    let (status, record) = mesh.server.get(&link).await.expect("an answer");
    assert!(status == 200 && record.contains("cart.shop.svc.cluster.local"), "{status} {record}");
    let (bank, _) = page("/console/mesh?namespace=bank&q=audit").await;
    assert!(bank.contains("checkout.example") && !bank.contains("shop/public"), "the nodes with edges to it: {bank}");

    let (graph, tables) = page("/console/dataflow?q=virtual_services/merged").await;
    for name in ["virtual_services/merged", "virtual_services/all", "virtual_services/by-host"] {
        assert!(graph.contains(name) && tables.contains(name), "{name}: {graph}\n{tables}");
    }
    assert!(!graph.contains("raw_secrets"), "{graph}");

    // Each row has a bar of its own.
    let (first, rest) = page("/console/timeline").await;
    let stages = first + &rest;
    let changed = stages.split("<tr>").find(|row| row.contains("VirtualService/shop/ratings")).expect("the change");
    assert!(changed.contains("1 of 1"), "one response, which is acknowledged: {changed}");
    let (status, findings) = mesh.server.get("/console/findings").await.expect("an answer");
    let twice = findings.split("<tr>").find(|row| row.contains("VirtualService/shop/twice")).expect("the duplicate");
    assert!(status == 200 && twice.contains("more.yaml:"), "{twice}");
}

#[tokio::test(flavor = "multi_thread")]
async fn form_of_previews_is_accepted_from_pages_of_the_server_only() {
    let mesh = AnswersFixture::start().await;
    let _cart = mesh.connect("cart-7f", "cart").await;
    let own = format!("http://{}", mesh.server.http);
    let body = "objects=kind%3A+Service%0D%0AapiVersion%3A+v1%0D%0Ametadata%3A+%7Bname%3A+extra%2C+namespace%3A+shop%7D%0D%0A\
                spec%3A+%7BclusterIP%3A+10.0.0.77%2C+ports%3A+%5B%7Bname%3A+http%2C+port%3A+80%7D%5D%7D";
    let send = async |origin: &[(&str, &str)], body: &str| {
        request(mesh.server.http, "POST", "/console/preview", origin, body).await.expect("an answer")
    };
    for other in [&[][..], &[("origin", "http://evil.example")], &[("origin", "null")]] {
        assert_eq!(send(other, body).await.status, 403, "{other:?}");
    }
    let answer = send(&[("origin", &own)], body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for part in
        ["Service/shop/extra", "created", "added CDS", "outbound|80||extra.shop.svc.cluster.local", "cart-7f.shop"]
    {
        assert!(answer.body.contains(part), "{part}: {}", answer.body);
    }
    let empty = send(&[("origin", &own)], "objects=").await;
    assert!(empty.status == 400 && empty.body.contains("has no objects"), "{}", empty.body);
    let (_, services) = mesh.server.get("/debug/registryz").await.expect("an answer");
    assert!(!services.contains("extra.shop"), "nothing is applied");
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
