//! Gateways: hosts, redirects, every TLS mode, TCP.

use anyhow::{Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::{AppReply, AppRequest, Tls};
use sluice_testkit::pods::identity::Authority;
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::family;
use crate::requests::{Host, always, eventually, once, share, until};

const TEA: Host = Host("tea", 1);
const LINES: Host = Host("lines", 2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let tea = |name, version| {
        Workload::new(name, "tea", PodRole::Sidecar(Protocol::Delta))
            .version(version)
            .port("http", 8080, PortProtocol::Http)
            .port("lines", 9000, PortProtocol::Lines)
            .port("https", 8443, PortProtocol::Https)
    };
    let mesh = family::mesh_of(&[
        Workload::new("door", "door", PodRole::Gateway(Protocol::Delta, "door")),
        Workload::new("visitor", "visitor", PodRole::NoProxy),
        Workload::new("insider", "insider", PodRole::Sidecar(Protocol::Sotw)),
        tea("tea-v1", "v1"),
        tea("tea-v2", "v2"),
    ])
    .await?;
    mesh.pods.write_certificate("server", &["shop.example.com".to_owned(), "lines.example.com".to_owned()])?;
    let services = TEA.service_with(
        "app: tea",
        "[{name: http, port: 80, targetPort: http}, {name: tls, port: 443, targetPort: https}]",
    ) + &LINES.service_with("app: tea", "[{name: tcp, port: 9000, targetPort: lines}]")
        + &TEA.versions();
    mesh.apply("services.yaml", &services)?;
    let mesh = &mesh;
    family::run(
        mesh,
        vec![
            ("hosts and paths", Box::pin(hosts_and_paths(mesh))),
            ("redirect to HTTPS", Box::pin(https_redirect(mesh))),
            ("TLS: SIMPLE", Box::pin(simple(mesh))),
            ("TLS: MUTUAL", Box::pin(mutual(mesh))),
            ("TLS: OPTIONAL_MUTUAL", Box::pin(optional_mutual(mesh))),
            ("TLS: Secrets, SIMPLE", Box::pin(secret_simple(mesh))),
            ("TLS: Secrets, MUTUAL", Box::pin(secret_mutual(mesh))),
            ("TLS: ISTIO_MUTUAL", Box::pin(istio_mutual(mesh))),
            ("TLS: PASSTHROUGH", Box::pin(passthrough(mesh))),
            ("TLS: AUTO_PASSTHROUGH", Box::pin(auto_passthrough(mesh))),
            ("TLS before TCP", Box::pin(tls_before_tcp(mesh))),
            ("TCP", Box::pin(tcp(mesh))),
        ],
    )
    .await
}

/// A Gateway with one server on a port, YAML in one line.
fn gateway_of(name: &str, port: u16, protocol: &str, server: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  \
         selector: {{istio: door}}\n  servers:\n  \
         - {{port: {{number: {port}, name: {name}-port, protocol: {protocol}}}, {server}}}\n---\n"
    )
}

/// A VirtualService for a gateway; `rest` is its routes, indented by two.
fn routes_of(name: &str, host: &str, rest: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  hosts: [\"{host}\"]\n  gateways: [{name}]\n{rest}\n---\n"
    )
}

const TO_TEA: &str = "  http: [{route: [{destination: {host: tea, port: {number: 80}}}]}]";

/// A call to the gateway.
fn at(mesh: &Mesh, port: u16, host: &str) -> AppRequest {
    AppRequest::get(vip(&mesh.pods.pod("door").net.ip.to_string(), port), host)
}

fn tls(mesh: &Mesh, name: &str) -> Tls {
    Tls { server_name: name.to_owned(), roots: mesh.pods.authority.root().to_owned(), ..Tls::default() }
}

fn is_tea(reply: &AppReply) -> bool {
    reply.responder().starts_with("tea ")
}

async fn hosts_and_paths(mesh: &Mesh) -> Result<()> {
    let rules = "  http:\n  - match: [{uri: {prefix: /v2}}]\n    route: [{destination: {host: tea, subset: v2, \
                 port: {number: 80}}}]\n  - match: [{uri: {prefix: /both}}]\n    route:\n    \
                 - {destination: {host: tea, subset: v1, port: {number: 80}}, weight: 60}\n    \
                 - {destination: {host: tea, subset: v2, port: {number: 80}}, weight: 40}\n  \
                 - route: [{destination: {host: tea, subset: v1, port: {number: 80}}}]";
    let objects = gateway_of("plain", 8080, "HTTP", "hosts: [shop.example.com, \"*.branch.example.com\"]")
        + &routes_of("plain", "shop.example.com", rules)
        + &routes_of("branches", "*.branch.example.com", TO_TEA).replace("gateways: [branches]", "gateways: [plain]");
    mesh.apply("plain.yaml", &objects)?;
    for (host, path, name) in [
        ("shop.example.com", "/", "tea v1"),
        ("shop.example.com", "/v2/x", "tea v2"),
        ("shop.example.com:8080", "/v2/x", "tea v2"),
        ("other.example.com", "/", "status 404"),
    ] {
        let call = at(mesh, 8080, host).path(path);
        eventually(mesh, "visitor", &call, name).await?;
        always(mesh, "visitor", &call, 10, name).await?;
    }
    share(mesh, "visitor", &at(mesh, 8080, "shop.example.com").path("/both"), 500, &[("tea v1", 60), ("tea v2", 40)])
        .await?;
    until(mesh, "visitor", &at(mesh, 8080, "north.branch.example.com"), "tea", is_tea).await?;
    until(mesh, "visitor", &at(mesh, 8080, "shop.example.com").http2(), "tea over HTTP/2", is_tea).await?;
    Ok(())
}

async fn https_redirect(mesh: &Mesh) -> Result<()> {
    let objects = gateway_of("redirect", 8081, "HTTP", "hosts: [shop.example.com], tls: {httpsRedirect: true}")
        + &routes_of("redirect", "shop.example.com", TO_TEA);
    mesh.apply("redirect.yaml", &objects)?;
    let call = at(mesh, 8081, "shop.example.com").path("/cups");
    until(mesh, "visitor", &call, "301 to https", |reply| {
        let location = |answer: &sluice_testkit::pods::app::AppResponse| answer.headers.get("location").cloned();
        let outcome = reply.outcome.as_ref().ok();
        outcome.is_some_and(|a| a.status == 301 && location(a).as_deref() == Some("https://shop.example.com/cups"))
    })
    .await?;
    Ok(())
}

const FILES: &str = "serverCertificate: $DIRECTORY/server.pem, privateKey: $DIRECTORY/server-key.pem";

async fn simple(mesh: &Mesh) -> Result<()> {
    let server = format!("hosts: [shop.example.com], tls: {{mode: SIMPLE, {FILES}, minProtocolVersion: TLSV1_3}}");
    let objects = gateway_of("simple", 8443, "HTTPS", &server) + &routes_of("simple", "shop.example.com", TO_TEA);
    mesh.apply("simple.yaml", &objects)?;
    let call = at(mesh, 8443, "shop.example.com").tls(tls(mesh, "shop.example.com"));
    until(mesh, "visitor", &call, "tea", is_tea).await?;
    let mut over_http2 = call.clone().http2();
    if let Some(tls) = &mut over_http2.tls {
        tls.alpn = vec!["h2".to_owned()];
    }
    once(mesh, "visitor", &over_http2, "tea over HTTP/2", is_tea).await?;
    // The handshake fails for a server name that the Gateway does not have, and a plaintext request has no response.
    let other = call.clone().tls(tls(mesh, "lines.example.com"));
    once(mesh, "visitor", &other, "a failed handshake", |reply| reply.outcome.is_err()).await?;
    let plain = at(mesh, 8443, "shop.example.com");
    once(mesh, "visitor", &plain, "no response in plaintext", |reply| reply.outcome.is_err()).await?;
    Ok(())
}

async fn mutual(mesh: &Mesh) -> Result<()> {
    let server = format!(
        "hosts: [shop.example.com], tls: {{mode: MUTUAL, {FILES}, caCertificates: $DIRECTORY/root.pem, \
         subjectAltNames: [friend.example.com]}}"
    );
    let objects = gateway_of("mutual", 8444, "HTTPS", &server) + &routes_of("mutual", "shop.example.com", TO_TEA);
    mesh.apply("mutual.yaml", &objects)?;
    let with = |identity| at(mesh, 8444, "shop.example.com").tls(Tls { identity, ..tls(mesh, "shop.example.com") });
    let friend = mesh.pods.authority.issue_hosts(&["friend.example.com".to_owned()])?;
    let denied = mesh.pods.authority.issue_hosts(&["foe.example.com".to_owned()])?;
    until(mesh, "visitor", &with(Some(friend)), "tea, with the client certificate forwarded", |reply| {
        let received = reply.outcome.as_ref().map(|answer| answer.received_request()).unwrap_or_default();
        is_tea(reply) && received["headers"]["x-forwarded-client-cert"].as_str().is_some_and(|c| c.contains("/sa/door"))
    })
    .await?;
    for (name, identity) in [("no certificate", None), ("a foe", Some(denied))] {
        let refused = format!("{name} is refused");
        once(mesh, "visitor", &with(identity), &refused, |reply| reply.outcome.is_err()).await?;
    }
    Ok(())
}

async fn optional_mutual(mesh: &Mesh) -> Result<()> {
    let server = format!(
        "hosts: [shop.example.com], tls: {{mode: OPTIONAL_MUTUAL, {FILES}, caCertificates: $DIRECTORY/root.pem}}"
    );
    let objects = gateway_of("optional", 8445, "HTTPS", &server) + &routes_of("optional", "shop.example.com", TO_TEA);
    mesh.apply("optional.yaml", &objects)?;
    let with = |identity| at(mesh, 8445, "shop.example.com").tls(Tls { identity, ..tls(mesh, "shop.example.com") });
    let friend = mesh.pods.authority.issue_hosts(&["friend.example.com".to_owned()])?;
    until(mesh, "visitor", &with(None), "tea", is_tea).await?;
    once(mesh, "visitor", &with(Some(friend)), "tea", is_tea).await?;
    Ok(())
}

/// A Secret in the gateway's namespace, a document of YAML.
fn secret_of(name: &str, (chain, key): &(String, String), roots: Option<&str>) -> String {
    let mut data = serde_json::json!({"tls.crt": chain, "tls.key": key});
    if let Some(roots) = roots {
        data["ca.crt"] = roots.into();
    }
    let metadata = serde_json::json!({"name": name, "namespace": "shop"});
    let object = serde_json::json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "stringData": data,
    });
    format!("{object}\n---\n")
}

/// The certificate is in a Secret, which changes while requests are sent.
async fn secret_simple(mesh: &Mesh) -> Result<()> {
    let host = ["shop.example.com".to_owned()];
    let server = "hosts: [shop.example.com], tls: {mode: SIMPLE, credentialName: shop-cert}";
    let objects = gateway_of("secret", 8461, "HTTPS", server) + &routes_of("secret", "shop.example.com", TO_TEA);
    mesh.apply("secret-gateway.yaml", &objects)?;
    mesh.apply("secret.yaml", &secret_of("shop-cert", &mesh.pods.authority.issue_hosts(&host)?, None))?;
    let other = Authority::new()?;
    let with_roots = |roots: &str| {
        let call = at(mesh, 8461, "shop.example.com");
        call.tls(Tls { server_name: "shop.example.com".to_owned(), roots: roots.to_owned(), ..Tls::default() })
    };
    let (old, new) = (with_roots(mesh.pods.authority.root()), with_roots(other.root()));
    until(mesh, "visitor", &old, "tea, by the first certificate", is_tea).await?;
    once(mesh, "visitor", &new, "a certificate of another authority", |reply| reply.outcome.is_err()).await?;
    let either = with_roots(&format!("{}{}", mesh.pods.authority.root(), other.root()));
    let rotation = async {
        once(mesh, "visitor", &either, "tea before", is_tea).await?;
        mesh.apply("secret.yaml", &secret_of("shop-cert", &other.issue_hosts(&host)?, None))?;
        until(mesh, "visitor", &new, "tea, by the second certificate", is_tea).await
    };
    let traffic = async {
        for _ in 0..50 {
            once(mesh, "visitor", &either, "tea all the while", is_tea).await?;
        }
        anyhow::Ok(())
    };
    tokio::try_join!(rotation, traffic)?;
    once(mesh, "visitor", &old, "the first certificate is no longer served", |reply| reply.outcome.is_err()).await?;
    // Proxies that hold a deleted Secret keep it.
    mesh.apply("secret.yaml", "")?;
    always_tea(mesh, &new).await
}

async fn always_tea(mesh: &Mesh, call: &AppRequest) -> Result<()> {
    for _ in 0..5 {
        once(mesh, "visitor", call, "tea, still", is_tea).await?;
    }
    Ok(())
}

/// The certificate and the roots are in a Secret.
async fn secret_mutual(mesh: &Mesh) -> Result<()> {
    let clients = Authority::new()?;
    let pair = mesh.pods.authority.issue_hosts(&["shop.example.com".to_owned()])?;
    let server = "hosts: [shop.example.com], tls: {mode: MUTUAL, credentialName: strict-cert}";
    let objects = secret_of("strict-cert", &pair, Some(clients.root()))
        + &gateway_of("strict", 8462, "HTTPS", server)
        + &routes_of("strict", "shop.example.com", TO_TEA);
    mesh.apply("secret-mutual.yaml", &objects)?;
    let with = |identity| at(mesh, 8462, "shop.example.com").tls(Tls { identity, ..tls(mesh, "shop.example.com") });
    let friend = clients.issue_hosts(&["friend.example.com".to_owned()])?;
    let stranger = mesh.pods.authority.issue_hosts(&["friend.example.com".to_owned()])?;
    until(mesh, "visitor", &with(Some(friend)), "tea", is_tea).await?;
    for (name, identity) in [("no certificate", None), ("a client of another authority", Some(stranger))] {
        once(mesh, "visitor", &with(identity), &format!("{name} is refused"), |reply| reply.outcome.is_err()).await?;
    }
    Ok(())
}

/// A ServiceEntry and a DestinationRule by which a client reaches a port of the gateway over mutual TLS with this SNI.
fn entry_of(name: &str, ip: &str, port: u16, sni: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: to-{name}, namespace: shop}}\n\
         spec:\n  hosts: [{name}.gateway.internal]\n  addresses: [{ip}]\n  location: MESH_INTERNAL\n  \
         resolution: STATIC\n  ports: [{{number: 80, name: http, protocol: HTTP, targetPort: {port}}}]\n  \
         endpoints: [{{address: $IP_OF_door}}]\n---\n\
         apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: to-{name}, namespace: shop}}\n\
         spec:\n  host: {name}.gateway.internal\n  trafficPolicy: {{tls: {{mode: ISTIO_MUTUAL, sni: {sni}}}}}\n---\n"
    )
}

async fn istio_mutual(mesh: &Mesh) -> Result<()> {
    let objects = gateway_of("inner", 8447, "HTTPS", "hosts: [inner.example.com], tls: {mode: ISTIO_MUTUAL}")
        + &routes_of("inner", "inner.example.com", TO_TEA)
        + &entry_of("inner", "10.200.2.20", 8447, "inner.example.com");
    mesh.apply("inner.yaml", &objects)?;
    // The client sends requests to the address of the ServiceEntry.
    let call = AppRequest::get(vip("10.200.2.20", 80), "inner.gateway.internal");
    let rewrite = r"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: to-inner, namespace: shop}
spec:
  hosts: [inner.gateway.internal]
  http:
  - rewrite: {authority: inner.example.com}
    route: [{destination: {host: inner.gateway.internal, port: {number: 80}}}]
";
    mesh.apply("to-inner.yaml", rewrite)?;
    until(mesh, "insider", &call, "tea, with the gateway's certificate forwarded", |reply| {
        let received = reply.outcome.as_ref().map(|answer| answer.received_request()).unwrap_or_default();
        is_tea(reply) && received["headers"]["x-forwarded-client-cert"].as_str().is_some_and(|c| c.contains("/sa/door"))
    })
    .await?;
    // A certificate from outside the mesh is rejected, and so is a client without one.
    let outsider = at(mesh, 8447, "inner.example.com").tls(tls(mesh, "inner.example.com"));
    once(mesh, "visitor", &outsider, "a failed handshake", |reply| reply.outcome.is_err()).await?;
    Ok(())
}

async fn passthrough(mesh: &Mesh) -> Result<()> {
    let name = "tea.shop.svc.cluster.local";
    let routes = format!(
        "  tls:\n  - match: [{{port: 8446, sniHosts: [{name}]}}]\n    \
         route: [{{destination: {{host: tea, subset: v2, port: {{number: 443}}}}}}]"
    );
    let objects = gateway_of("through", 8446, "TLS", &format!("hosts: [{name}], tls: {{mode: PASSTHROUGH}}"))
        + &routes_of("through", name, &routes);
    mesh.apply("through.yaml", &objects)?;
    let call = at(mesh, 8446, name).tls(tls(mesh, name));
    until(mesh, "visitor", &call, "the application's own TLS at tea v2", |reply| {
        let received = reply.outcome.as_ref().map(|answer| answer.received_request()).unwrap_or_default();
        reply.responder() == "tea v2" && received["tls"]["serverName"] == name
    })
    .await?;
    always(mesh, "visitor", &call, 10, "tea v2").await?;
    let other = call.tls(tls(mesh, "shop.example.com"));
    once(mesh, "visitor", &other, "no connection for another name", |reply| reply.outcome.is_err()).await?;
    Ok(())
}

/// Traffic between networks: the server name contains the cluster.
async fn auto_passthrough(mesh: &Mesh) -> Result<()> {
    let objects = gateway_of("east-west", 8450, "TLS", "hosts: [\"*.local\"], tls: {mode: AUTO_PASSTHROUGH}")
        + &entry_of("east-west", "10.200.2.21", 8450, "outbound_.80_._.tea.shop.svc.cluster.local");
    mesh.apply("east-west.yaml", &objects)?;
    let call = AppRequest::get(vip("10.200.2.21", 80), "east-west.gateway.internal");
    until(mesh, "insider", &call, "tea, called by the insider itself", |reply| {
        let received = reply.outcome.as_ref().map(|answer| answer.received_request()).unwrap_or_default();
        is_tea(reply)
            && received["headers"]["x-forwarded-client-cert"].as_str().is_some_and(|c| c.contains("/sa/insider"))
    })
    .await?;
    Ok(())
}

async fn tls_before_tcp(mesh: &Mesh) -> Result<()> {
    let server = format!("hosts: [lines.example.com], tls: {{mode: SIMPLE, {FILES}}}");
    let routes = "  tcp: [{match: [{port: 8448}], route: [{destination: {host: lines, port: {number: 9000}}}]}]";
    let objects = gateway_of("tls-tcp", 8448, "TLS", &server) + &routes_of("tls-tcp", "lines.example.com", routes);
    mesh.apply("tls-tcp.yaml", &objects)?;
    let address = at(mesh, 8448, "").address;
    let call = AppRequest::raw(address).tls(tls(mesh, "lines.example.com"));
    until(mesh, "visitor", &call, "a line from tea", is_tea).await?;
    Ok(())
}

async fn tcp(mesh: &Mesh) -> Result<()> {
    let routes = "  tcp: [{match: [{port: 8449}], route: [{destination: {host: lines, port: {number: 9000}}}]}]";
    let objects = gateway_of("tcp", 8449, "TCP", "hosts: [\"*\"]") + &routes_of("tcp", "*", routes);
    mesh.apply("tcp.yaml", &objects)?;
    let call = AppRequest::raw(at(mesh, 8449, "").address);
    let reply = until(mesh, "visitor", &call, "a line from tea", is_tea).await?;
    let line = reply.outcome.map_err(anyhow::Error::msg)?.received_request();
    ensure!(line["line"] == "hello", "the application received the sent line, but {line}");
    Ok(())
}
