//! The library accepts what the control plane sends for any field of the objects, also for those that gRPC has no form for.

use anyhow::Result;
use sluice_testkit::pods::grpc_app::GrpcCall;

use crate::calls::eventually;
use crate::libraries::Libraries;
use crate::{every_resource_is_accepted, mesh_of, mutual_tls, routes, service, strict, target};

/// Routes of VirtualServices, by the name of their host. `$` is the destination.
const ROUTES: [(&str, &str); 7] = [
    (
        "matches",
        "{match: [{uri: {exact: /shop.Tea/Get}, method: {exact: POST}}], $}, {match: [{uri: {regex: '/shop\\.[A-Z].*'}, \
         ignoreUriCase: true}], $}, {match: [{headers: {a: {prefix: x}, b: {regex: 'y+'}, c: {}, d: {exact: z}}, \
         withoutHeaders: {e: {exact: x}, f: {prefix: x}, g: {}}}], $}, {match: [{uri: {prefix: /shop.}, queryParams: {q: \
         {exact: v}}}], $}, {match: [{authority: {prefix: shop}, port: 7070, sourceLabels: {app: client}}], $}, {$}",
    ),
    (
        "rewrites",
        "{rewrite: {uri: /shop.Tea/Other, authority: other}, headers: {request: {set: {a: b}, add: {c: d}, remove: [e]}, \
         response: {set: {f: g}}}, mirror: {host: tea}, mirrorPercentage: {value: 50}, corsPolicy: {allowOrigins: [{exact: \
         'https://a'}], allowMethods: [POST]}, $}",
    ),
    ("redirects", "{match: [{uri: {prefix: /shop.Away/}}], redirect: {uri: /, authority: away}}, {$}"),
    ("responds", "{match: [{uri: {prefix: /shop.Direct/}}], directResponse: {status: 404, body: {string: none}}}, {$}"),
    (
        "retries",
        "{retries: {attempts: 12, perTryTimeout: 2s, retryOn: '5xx,gateway-error,cancelled,unavailable,internal,503', \
         retryRemoteLocalities: true}, timeout: 600s, $}",
    ),
    (
        "faults",
        "{match: [{headers: {delayed: {exact: 'yes'}}}], fault: {delay: {fixedDelay: 1s, percentage: {value: 0.5}}, abort: \
         {httpStatus: 503, percentage: {value: 0.1}}}, $}, {$}",
    ),
    (
        "weights",
        "{route: [{destination: {host: weights, subset: v1}, weight: 1}, {destination: {host: absent}, weight: 0}]}",
    ),
];

/// Traffic policies of DestinationRules, by the name of their host.
const POLICIES: [(&str, &str); 8] = [
    ("least-request", "loadBalancer: {simple: LEAST_REQUEST, warmupDurationSecs: 10s}"),
    ("random", "loadBalancer: {simple: RANDOM}"),
    ("by-header", "loadBalancer: {consistentHash: {httpHeaderName: x-user, ringHash: {minimumRingSize: 2048}}}"),
    ("by-cookie", "loadBalancer: {consistentHash: {httpCookie: {name: user, ttl: 1s}}}"),
    ("by-source", "loadBalancer: {consistentHash: {useSourceIp: true, maglev: {tableSize: 5003}}}"),
    (
        "locality",
        "loadBalancer: {localityLbSetting: {enabled: true, failoverPriority: [topology.kubernetes.io/region]}}, \
         outlierDetection: {consecutive5xxErrors: 2, interval: 1s, maxEjectionPercent: 100}",
    ),
    (
        "limits",
        "connectionPool: {tcp: {maxConnections: 10, connectTimeout: 1s, tcpKeepalive: {time: 60s}}, http: \
         {http2MaxRequests: 50, maxRetries: 2, idleTimeout: 60s, maxRequestsPerConnection: 9}}",
    ),
    (
        "proxy-protocol",
        "proxyProtocol: {version: V2}, portLevelSettings: [{port: {number: 7070}, tls: {mode: ISTIO_MUTUAL}, loadBalancer: {simple: ROUND_ROBIN}}]",
    ),
];

const AUTHORIZATION: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: all-fields, namespace: shop}
spec:
  selector: {matchLabels: {app: tea}}
  rules:
  - from:
    - source: {principals: [cluster.local/ns/shop/sa/client], namespaces: [shop], ipBlocks: [10.0.0.0/8], remoteIpBlocks: [10.0.0.0/8]}
    - source: {notPrincipals: ['*/sa/other'], notNamespaces: [scrap], notIpBlocks: [192.0.2.1]}
    to:
    - operation: {paths: [/shop.Tea/*], methods: [POST], ports: ['7070'], hosts: ['*']}
    - operation: {notPaths: ['*/Closed', /shop.Closed/*], notMethods: [GET], notPorts: ['9'], notHosts: [absent]}
    when:
    - {key: 'request.headers[user-agent]', values: ['grpc-*']}
    - {key: source.ip, notValues: [192.0.2.0/24]}
    - {key: destination.port, values: ['7070']}
    - {key: connection.sni, notValues: [absent]}
  - from: [{source: {principals: ['cluster.local/*', '*/sa/client', '*']}}]
  - when: [{key: 'request.headers[grpc-timeout]', values: ['*']}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: with-token, namespace: shop}
spec:
  selector: {matchLabels: {app: tea}}
  action: DENY
  rules:
  - to: [{operation: {paths: [/shop.Closed/*]}}]
  - to: [{operation: {paths: [/shop.Reserved/*]}}]
    when: [{key: 'request.headers[Grpc-Trace-Bin]', values: ['*']}, {key: 'request.headers[:scheme]', values: [https]}]
  - from: [{source: {requestPrincipals: [issuer/subject]}}]
    when: [{key: 'request.auth.claims[group]', values: [admin]}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec: {selector: {matchLabels: {app: tea}}, jwtRules: [{issuer: issuer, jwks: '{\"keys\": []}'}]}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: default, namespace: shop}
spec: {accessLogging: [{providers: [{name: envoy}]}]}
---
";

const EXTERNAL: &str = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: resolved, namespace: shop}
spec: {hosts: [resolved.example.org], resolution: DNS, ports: [{number: 7070, name: grpc, protocol: GRPC}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: static, namespace: shop}
spec: {hosts: [static.example.org], resolution: STATIC, ports: [{number: 7070, name: tls, protocol: HTTPS}],
  endpoints: [{address: 192.0.2.1, locality: r/z/s, weight: 3}, {address: '2001:db8::1', network: other}, {address: 'unix:///tmp/a'}]}
---
";

with_libraries!(resources_of_all_fields_are_accepted: python, go);

async fn resources_of_all_fields_are_accepted(libraries: Libraries) -> Result<()> {
    let mut objects =
        vec![strict("tea"), AUTHORIZATION.to_owned(), EXTERNAL.to_owned(), service("tea", "tea"), mutual_tls("tea")];
    let sessions = service("sessions", "tea")
        .replace("{name: sessions,", "{name: sessions, labels: {istio.io/persistent-session: session},");
    objects.extend([sessions, mutual_tls("sessions")]);
    for (name, route) in ROUTES {
        let destination = format!("route: [{{destination: {{host: {name}, subset: v1}}}}]");
        objects.extend([service(name, "tea"), mutual_tls(name), routes(name, &route.replace('$', &destination))]);
    }
    for (name, policy) in POLICIES {
        let rule = mutual_tls(name)
            .replace("{tls: {mode: ISTIO_MUTUAL}}", &format!("{{tls: {{mode: ISTIO_MUTUAL}}, {policy}}}"));
        objects.extend([service(name, "tea"), rule]);
    }
    let mesh =
        mesh_of(&[libraries.client("client"), libraries.server("tea", "tea", "v1")], &objects.concat(), &[]).await?;
    let hosts = ROUTES.iter().chain(&POLICIES).map(|(name, _)| *name).chain(["tea", "sessions"]);
    eventually(&mesh, "client", &GrpcCall::new(&target("tea")), "tea v1").await?;
    // A call subscribes to all resources of its host.
    for host in hosts.clone() {
        mesh.pods.pod("client").call_grpc(&GrpcCall::new(&target(host))).await?;
    }
    every_resource_is_accepted(&mesh).await?;
    for host in hosts {
        eventually(&mesh, "client", &GrpcCall::new(&target(host)), "tea v1").await?;
    }
    for host in ["resolved.example.org", "static.example.org"] {
        let call = GrpcCall { timeout_seconds: 2, ..GrpcCall::new(&format!("xds:///{host}:7070")) };
        eventually(&mesh, "client", &call, "UNAVAILABLE").await?;
    }
    for path in ["/shop.Closed/Get", "/shop.Reserved/Get"] {
        eventually(&mesh, "client", &GrpcCall::new(&target("tea")).path(path), "PERMISSION_DENIED").await?;
    }
    every_resource_is_accepted(&mesh).await
}
