//! HTTP routes of VirtualServices, for a client with a sidecar.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::{AppReply, AppRequest};
use sluice_testkit::pods::mesh::Mesh;
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::family;
use crate::requests::{Host, always, answer, eventually, once, share, until, until_counted};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routing() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let mesh =
        family::mesh_of(&[
            Workload::new("client", "client", PodRole::Sidecar(Protocol::Delta)),
            Workload::new("tea-v1", "tea", PodRole::Sidecar(Protocol::Sotw))
                .port("http", 8080, PortProtocol::Http)
                .port("http2", 8082, PortProtocol::Http),
            Workload::new("tea-v2", "tea", PodRole::Sidecar(Protocol::Delta)).version("v2"),
            Workload::new("shadow", "shadow", PodRole::NoProxy),
        ])
        .await?;
    let mesh = &mesh;
    family::run(
        mesh,
        vec![
            ("header canary", Box::pin(header_canary(mesh))),
            ("weights", Box::pin(weights(mesh))),
            ("matches", Box::pin(matches(mesh))),
            ("redirects", Box::pin(redirects(mesh))),
            ("rewrites", Box::pin(rewrites(mesh))),
            ("header operations", Box::pin(header_operations(mesh))),
            ("CORS", Box::pin(cors(mesh))),
            ("mirroring", Box::pin(mirroring(mesh))),
            ("delegates", Box::pin(delegates(mesh))),
            ("ports", Box::pin(ports(mesh))),
            ("HTTP/2", Box::pin(http2(mesh))),
            ("weights that change", Box::pin(weights_that_change(mesh))),
        ],
    )
    .await
}

async fn header_canary(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("canary", 1);
    let rules = HOST.routes(
        r#"
  - match:
    - headers: {x-user: {exact: maya}}
    - headers: {x-user: {regex: "t.*r"}, x-group: {prefix: beta}}
    - headers: {x-any: {}}
      withoutHeaders: {x-stable: {}}
    route:
    - destination: {host: canary, subset: v2}
  - route:
    - destination: {host: canary, subset: v1}"#,
    );
    mesh.apply("canary.yaml", &(HOST.service("app: tea") + &HOST.versions() + &rules))?;
    let plain = HOST.get();
    eventually(mesh, "client", &plain, "tea v1").await?;
    always(mesh, "client", &plain, 20, "tea v1").await?;
    let with =
        |headers: &[(&str, &str)]| headers.iter().fold(plain.clone(), |call, (name, value)| call.header(name, value));
    for (headers, expected) in [
        (with(&[("x-user", "maya")]), "tea v2"),
        (with(&[("x-user", "Maya")]), "tea v1"),
        (with(&[("x-user", "taylor"), ("x-group", "beta-3")]), "tea v2"),
        (with(&[("x-user", "taylor"), ("x-group", "alpha")]), "tea v1"),
        (with(&[("x-user", "a taylor b"), ("x-group", "beta-3")]), "tea v1"),
        (with(&[("x-any", "1")]), "tea v2"),
        (with(&[("x-any", "1"), ("x-stable", "1")]), "tea v1"),
    ] {
        always(mesh, "client", &headers, 10, expected).await?;
    }
    Ok(())
}

async fn weights(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("weighted", 2);
    let rules = HOST.routes(
        "  - route:\n    - {destination: {host: weighted, subset: v1}, weight: 70}\n    \
         - {destination: {host: weighted, subset: v2}, weight: 30}",
    );
    mesh.apply("weighted.yaml", &(HOST.service("app: tea") + &HOST.versions() + &rules))?;
    eventually(mesh, "client", &HOST.get(), "tea v2").await?;
    share(mesh, "client", &HOST.get(), 1000, &[("tea v1", 70), ("tea v2", 30)]).await?;
    Ok(())
}

/// No request fails while the weights of a rollout change.
async fn weights_that_change(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("rollout", 12);
    let at = |v2: usize| {
        let v1 = 100 - v2;
        let rules = format!(
            "  - route:\n    - {{destination: {{host: rollout, subset: v1}}, weight: {v1}}}\n    \
             - {{destination: {{host: rollout, subset: v2}}, weight: {v2}}}"
        );
        mesh.apply("rollout.yaml", &(HOST.service("app: tea") + &HOST.versions() + &HOST.routes(&rules)))
    };
    at(0)?;
    eventually(mesh, "client", &HOST.get(), "tea v1").await?;
    let version = |reply: &AppReply| ["tea v1", "tea v2"].contains(&reply.responder().as_str());
    for v2 in [10, 50, 100] {
        at(v2)?;
        // So many consecutive responses from v2 are improbable with the weights before.
        let (expected, deadline) = (if v2 == 100 { 20 } else { 1 }, Instant::now() + Duration::from_secs(15));
        let mut row = 0;
        while row < expected {
            let reply = once(mesh, "client", &HOST.get(), "an answer at every step", version).await?;
            row = if reply.responder() == "tea v2" { row + 1 } else { 0 };
            ensure!(
                Instant::now() < deadline,
                "at {v2} % the last {row} responses are from v2, but {expected} are expected"
            );
        }
    }
    always(mesh, "client", &HOST.get(), 40, "tea v2").await
}

async fn matches(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("matches", 3);
    let rules = HOST.routes(
        r#"
  - match: [{uri: {exact: /exact}}]
    directResponse: {status: 211}
  - match: [{uri: {prefix: /prefix/}}]
    directResponse: {status: 212}
  - match: [{uri: {regex: "/item/[0-9]+"}}]
    directResponse: {status: 213}
  - match: [{uri: {exact: /case}, ignoreUriCase: true}]
    directResponse: {status: 214}
  - match: [{method: {exact: DELETE}}]
    directResponse: {status: 215}
  - match: [{queryParams: {color: {exact: green}}}]
    directResponse: {status: 216}
  - match: [{authority: {prefix: matches.shop}, uri: {exact: /authority}}]
    directResponse: {status: 217}
  - match: [{uri: {exact: /labels}, sourceLabels: {app: client}}]
    directResponse: {status: 218, body: {string: "from the client"}}
  - match: [{uri: {exact: /labels}, sourceLabels: {app: absent}}]
    directResponse: {status: 500}
  - match: [{uri: {exact: /namespace}, sourceNamespace: elsewhere}]
    directResponse: {status: 500}
  - match: [{uri: {exact: /scheme}, scheme: {exact: http}, port: 80}]
    directResponse: {status: 219}
  - match: [{uri: {exact: /gateways}, gateways: [some-gateway]}]
    directResponse: {status: 500}
  - route: [{destination: {host: matches}}]"#,
    );
    mesh.apply("matches.yaml", &(HOST.service("app: tea, version: v1") + &rules))?;
    eventually(mesh, "client", &HOST.get(), "tea v1").await?;
    let get = |path: &str| HOST.get().path(path);
    for (call, expected) in [
        (get("/exact"), "status 211"),
        (get("/exact?with=query"), "status 211"),
        (get("/exact/more"), "tea v1"),
        (get("/prefix/more"), "status 212"),
        (get("/prefix"), "tea v1"),
        (get("/item/12"), "status 213"),
        (get("/item/12a"), "tea v1"),
        (get("/CaSe"), "status 214"),
        (get("/").method("DELETE"), "status 215"),
        (get("/?color=green"), "status 216"),
        (get("/?color=greenish"), "tea v1"),
        (AppRequest { host: "matches.shop".to_owned(), ..get("/authority") }, "status 217"),
        (get("/authority"), "tea v1"),
        (get("/labels"), "status 218"),
        (get("/namespace"), "tea v1"),
        (get("/scheme"), "status 219"),
        (get("/gateways"), "tea v1"),
    ] {
        always(mesh, "client", &call, 3, expected).await?;
    }
    let reply = once(mesh, "client", &get("/labels"), "a body", |reply| reply.responder() == "status 218").await?;
    ensure!(answer(reply)?.body == "from the client", "the body of a direct response");
    Ok(())
}

async fn redirects(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("redirects", 4);
    let rules = HOST.routes(
        r#"
  - match: [{uri: {exact: /old}}]
    redirect: {uri: /new, authority: other.example.com}
  - match: [{uri: {exact: /moved}}]
    redirect: {uri: /here, redirectCode: 308}
  - match: [{uri: {exact: /secure}}]
    redirect: {scheme: https, port: 8443, redirectCode: 302}
  - match: [{uri: {prefix: /docs/}}]
    redirect: {uri: "%PREFIX()%/manual/", redirectCode: 307}
  - route: [{destination: {host: redirects}}]"#,
    );
    mesh.apply("redirects.yaml", &(HOST.service("app: tea, version: v1") + &rules))?;
    eventually(mesh, "client", &HOST.get(), "tea v1").await?;
    for (path, status, location) in [
        ("/old", 301, "http://other.example.com/new"),
        ("/moved", 308, "http://redirects/here"),
        ("/secure", 302, "https://redirects:8443/secure"),
    ] {
        once(mesh, "client", &HOST.get().path(path), &format!("{status} to {location}"), |reply| {
            reply.outcome.as_ref().is_ok_and(|answer| {
                answer.status == status && answer.headers.get("location").is_some_and(|to| to == location)
            })
        })
        .await?;
    }
    Ok(())
}

async fn rewrites(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("rewrites", 5);
    let rules = HOST.routes(
        r#"
  - match: [{uri: {prefix: /api/v1}}]
    rewrite: {uri: /internal}
    route: [{destination: {host: rewrites}}]
  - match: [{uri: {prefix: /authority}}]
    rewrite: {authority: inner.example.com}
    route: [{destination: {host: rewrites}}]
  - match: [{uri: {prefix: /orders}}]
    rewrite:
      uriRegexRewrite: {match: "^/orders/([^/]+)/(.*)$", rewrite: '/\2/of/\1'}
    route: [{destination: {host: rewrites}}]
  - route: [{destination: {host: rewrites}}]"#,
    );
    mesh.apply("rewrites.yaml", &(HOST.service("app: tea, version: v1") + &rules))?;
    eventually(mesh, "client", &HOST.get(), "tea v1").await?;
    for (path, received_path, received_host) in [
        ("/api/v1/cups?size=3", "/internal/cups?size=3", "rewrites"),
        ("/authority/x", "/authority/x", "inner.example.com"),
        ("/orders/12/items", "/items/of/12", "rewrites"),
        ("/plain", "/plain", "rewrites"),
    ] {
        let expected = format!("{received_host}{received_path} at the application");
        once(mesh, "client", &HOST.get().path(path), &expected, |reply| {
            let received_request = reply.outcome.as_ref().map(|answer| answer.received_request()).unwrap_or_default();
            received_request["path"] == received_path && received_request["host"] == received_host
        })
        .await?;
    }
    Ok(())
}

async fn header_operations(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("operations", 6);
    let rules = HOST.routes(
        r#"
  - headers:
      request: {set: {x-set: route}, add: {x-added: one}, remove: [x-secret]}
      response: {set: {x-answer: route}, remove: [content-type]}
    route:
    - destination: {host: operations}
      headers:
        request: {set: {x-destination: tea}}
        response: {add: {x-late: "yes"}}"#,
    );
    mesh.apply("operations.yaml", &(HOST.service("app: tea, version: v1") + &rules))?;
    eventually(mesh, "client", &HOST.get(), "tea v1").await?;
    let call = HOST.get().header("x-set", "client").header("x-secret", "1").header("x-kept", "1");
    let answer = answer(once(mesh, "client", &call, "an answer", |reply| reply.responder() == "tea v1").await?)?;
    let received_headers = &answer.received_request()["headers"];
    for (name, value) in [("x-set", "route"), ("x-added", "one"), ("x-kept", "1"), ("x-destination", "tea")] {
        ensure!(
            received_headers[name] == value,
            "the application receives {name}: {value}, but it received {received_headers}"
        );
    }
    ensure!(
        received_headers["x-secret"].is_null(),
        "x-secret is removed, but the application received {received_headers}"
    );
    let headers = &answer.headers;
    ensure!(headers.get("x-answer").is_some_and(|v| v == "route"), "x-answer is set, but the headers are {headers:?}");
    ensure!(headers.get("x-late").is_some_and(|v| v == "yes"), "x-late is added, but the headers are {headers:?}");
    ensure!(!headers.contains_key("content-type"), "content-type is removed, but the headers are {headers:?}");
    Ok(())
}

async fn cors(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("cors", 7);
    let rules = HOST.routes(
        r#"
  - corsPolicy:
      allowOrigins: [{exact: "https://shop.example.com"}, {regex: "https://[a-z]+[.]example[.]org"}]
      allowMethods: [GET, PUT]
      allowHeaders: [x-cup]
      exposeHeaders: [x-tea]
      maxAge: 24h
      allowCredentials: true
    route: [{destination: {host: cors}}]"#,
    );
    mesh.apply("cors.yaml", &(HOST.service("app: tea, version: v1") + &rules))?;
    eventually(mesh, "client", &HOST.get(), "tea v1").await?;
    let preflight = |origin: &str| {
        HOST.get()
            .method("OPTIONS")
            .path("/preflight")
            .header("origin", origin)
            .header("access-control-request-method", "PUT")
    };
    let header = |reply: &AppReply, name: &str| {
        reply.outcome.as_ref().ok().and_then(|answer| answer.headers.get(name).cloned()).unwrap_or_default()
    };
    for origin in ["https://shop.example.com", "https://tea.example.org"] {
        let call = preflight(origin);
        let reply = once(mesh, "client", &call, "a preflight answer by Envoy", |reply| {
            header(reply, "access-control-allow-origin") == origin && reply.responder().is_empty()
        })
        .await?;
        for (name, value) in [
            ("access-control-allow-methods", "GET,PUT"),
            ("access-control-allow-headers", "x-cup"),
            ("access-control-max-age", "86400"),
            ("access-control-allow-credentials", "true"),
        ] {
            ensure!(header(&reply, name) == value, "{name} is {value}, but the response is {:?}", reply.outcome);
        }
        let call = HOST.get().header("origin", origin);
        once(mesh, "client", &call, "the answer with headers", |reply| {
            reply.responder() == "tea v1" && header(reply, "access-control-expose-headers") == "x-tea"
        })
        .await?;
    }
    let call = preflight("https://evil.example.com");
    once(mesh, "client", &call, "no permission for another origin", |reply| {
        header(reply, "access-control-allow-origin").is_empty()
    })
    .await?;
    let received = mesh.pods.pod("tea-v1").received("/preflight").await?;
    let allowed = received.iter().filter(|request| request["headers"]["origin"] != "https://evil.example.com").count();
    ensure!(allowed == 0, "Envoy answers preflights, but the application received {received:?}");
    Ok(())
}

async fn mirroring(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("mirrored", 8);
    const SHADOW: Host = Host("shadow", 9);
    let rules = HOST.routes(
        r"
  - match: [{uri: {prefix: /all}}]
    route: [{destination: {host: mirrored}}]
    mirror: {host: shadow}
  - match: [{uri: {prefix: /half}}]
    route: [{destination: {host: mirrored}}]
    mirrors:
    - destination: {host: shadow}
      percentage: {value: 50}
  - route: [{destination: {host: mirrored}}]",
    );
    let services = HOST.service("app: tea, version: v1") + &SHADOW.service("app: shadow");
    mesh.apply("mirrored.yaml", &(services + &rules))?;
    eventually(mesh, "client", &HOST.get(), "tea v1").await?;
    always(mesh, "client", &HOST.get().path("/all"), 40, "tea v1").await?;
    let shadow = mesh.pods.pod("shadow");
    until_counted("requests at the mirror", 40, async || Ok(shadow.received("/all").await?.len())).await?;
    let received = shadow.received("/all").await?;
    ensure!(received.len() == 40, "40 requests at the mirror, but {}", received.len());
    let same = |request: &serde_json::Value| request["host"] == "mirrored";
    ensure!(received.iter().all(same), "the mirror receives the original host, but {:?}", received.first());

    always(mesh, "client", &HOST.get().path("/half"), 400, "tea v1").await?;
    // 200 at six standard deviations of 10 each.
    until_counted("requests at the mirror of half", 140, async || Ok(shadow.received("/half").await?.len())).await?;
    let half = shadow.received("/half").await?.len();
    ensure!(half <= 260, "about 200 of 400 are mirrored, but {half}");
    always(mesh, "client", &HOST.get().path("/none"), 20, "tea v1").await?;
    ensure!(shadow.received("/none").await?.is_empty(), "nothing else is mirrored");
    Ok(())
}

async fn delegates(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("delegates", 10);
    let root = HOST.routes(
        r"
  - match: [{uri: {prefix: /reviews}}]
    delegate: {name: reviews-part, namespace: parts}
  - route: [{destination: {host: delegates, subset: v1}}]",
    );
    let part = r"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews-part, namespace: parts}
spec:
  http:
  - match: [{uri: {prefix: /reviews/new}}]
    route: [{destination: {host: delegates.shop.svc.cluster.local, subset: v2}}]
";
    mesh.apply("delegates.yaml", &(HOST.service("app: tea") + &HOST.versions() + &root + part))?;
    for (path, expected) in [("/", "tea v1"), ("/reviews/new/3", "tea v2"), ("/reviews", "tea v1")] {
        eventually(mesh, "client", &HOST.get().path(path), expected).await?;
        always(mesh, "client", &HOST.get().path(path), 5, expected).await?;
    }
    Ok(())
}

async fn ports(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("ports", 11);
    let rules = HOST.routes(
        r"
  - match: [{port: 8000}]
    route: [{destination: {host: ports, subset: v2, port: {number: 80}}}]
  - route: [{destination: {host: ports, subset: v1, port: {number: 80}}}]",
    );
    let service = HOST.service_with(
        "app: tea",
        "[{name: http, port: 80, targetPort: http}, {name: http-more, port: 8000, targetPort: 8080}]",
    );
    mesh.apply("ports.yaml", &(service + &HOST.versions() + &rules))?;
    let more = AppRequest { address: (HOST.get().address.ip(), 8000).into(), ..HOST.get() };
    for (call, expected) in [(HOST.get(), "tea v1"), (more, "tea v2")] {
        eventually(mesh, "client", &call, expected).await?;
        always(mesh, "client", &call, 10, expected).await?;
    }
    Ok(())
}

async fn http2(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("fluent", 13);
    const UPGRADED: Host = Host("upgraded", 14);
    let fluent = HOST.service_with("app: tea, version: v1", "[{name: http2-api, port: 80, targetPort: http2}]");
    let upgraded =
        UPGRADED.service("app: shadow") + &UPGRADED.policy("connectionPool: {http: {h2UpgradePolicy: UPGRADE}}");
    mesh.apply("http2.yaml", &(fluent + &upgraded))?;
    for (call, expected) in [(HOST.get(), "tea v1"), (HOST.get().http2(), "tea v1"), (UPGRADED.get(), "shadow v1")] {
        until(mesh, "client", &AppRequest { timeout_ms: 1000, ..call }, &format!("{expected} over HTTP/2"), |reply| {
            let received_request = reply.outcome.as_ref().map(|answer| answer.received_request()).unwrap_or_default();
            reply.responder() == expected && received_request["protocol"] == "HTTP/2.0"
        })
        .await?;
    }
    Ok(())
}
