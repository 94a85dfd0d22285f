//! Texts that are hard on readers of YAML and JSON.

/// Objects of kinds that the cases do not have.
pub(crate) const OTHER_OBJECTS: &str = "
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata: {name: a, namespace: n}
spec: {type: ExternalHostname, externalHostname: {hostname: a.example}, ports: [{number: 80, protocol: HTTP}]}
---
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceExport
metadata: {name: a, namespace: n, labels: {a: b}, annotations: {a: b}}
---
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceImport
metadata: {name: a, namespace: n}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: a, labels: {istio.io/rev: b, istio.io/tag: c}}
webhooks: [{name: a, clientConfig: {caBundle: YQ==}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: a, labels: {istio.io/rev: b}}
webhooks: [{name: a, clientConfig: {caBundle: YQ==}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: a, namespace: n}
spec:
  rules:
  - filters:
    - type: ExternalAuth
      externalAuth: {protocol: GRPC, backendRef: {name: a, port: 1}, grpc: {allowedHeaders: [a]}, forwardBody: {maxSize: 1}}
    - type: ExternalAuth
      externalAuth: {protocol: HTTP, backendRef: {name: a, port: 1}, http: {path: a, allowedHeaders: [a], allowedResponseHeaders: [a]}}
spec: {type: ClusterSetIP, ips: [10.0.0.1], ports: [{name: http, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1alpha2
kind: UDPRoute
metadata: {name: a, namespace: n}
spec:
  parentRefs: [{name: door, namespace: m, sectionName: dns, port: 53}]
  rules: [{name: r, backendRefs: [{name: b, namespace: o, port: 53, weight: 1}]}]
";

/// Size of each text.
const BYTES: usize = 128 << 10;
/// Deeper than any reader accepts.
const DEPTH: usize = 20_000;

fn repeated(part: &str) -> String {
    part.repeat(BYTES / part.len())
}

fn numbered(part: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for n in 0.. {
        text += &part(n);
        if text.len() > BYTES {
            break;
        }
    }
    text
}

/// Texts, each with a name.
pub(crate) fn all() -> Vec<(&'static str, String)> {
    let long = "x".repeat(BYTES);
    let half = "x".repeat(BYTES / 2);
    vec![
        ("nested flow sequences", format!("a: {}", "[".repeat(DEPTH))),
        ("nested and closed flow sequences", format!("a: {}{}", "[".repeat(DEPTH), "]".repeat(DEPTH))),
        ("nested flow mappings", format!("a: {}", "{a: ".repeat(DEPTH))),
        ("nested JSON", "{\"a\":".repeat(DEPTH)),
        ("nested and closed JSON", format!("{}1{}", "{\"a\":".repeat(DEPTH), "}".repeat(DEPTH))),
        ("nested JSON lists", format!("{{\"a\":{}{}}}", "[".repeat(DEPTH), "]".repeat(DEPTH))),
        ("nested block sequences", "- ".repeat(DEPTH)),
        ("nested block mappings", (0..400).map(|n| format!("{}a:\n", " ".repeat(n))).collect()),
        ("nested explicit keys", "? ".repeat(DEPTH)),
        ("many documents", repeated("---\na: 1\n")),
        ("many empty documents", repeated("---\n")),
        ("many documents in one chunk", repeated("a: 1\n...\n")),
        ("many JSON documents", repeated("{}\n")),
        ("many JSON documents on one line", repeated("{\"a\":1}")),
        ("many invalid documents", repeated("---\na: [\n")),
        ("many objects of an unknown kind", repeated("---\n{kind: A, apiVersion: b}\n")),
        ("list of invalid objects", format!("kind: List\napiVersion: v1\nitems:\n{}", repeated("- {}\n"))),
        ("list of objects with unknown fields", {
            let item = "- {apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: a}, spec: {a: 1}}\n";
            format!("kind: List\napiVersion: v1\nitems:\n{}", repeated(item))
        }),
        ("long key", format!("{long}: 1\n")),
        ("long quoted key with unknown fields", format!("{{\"{half}\": {{{}}}}}", numbered(|n| format!("u{n}: 1, ")))),
        ("unknown fields", numbered(|n| format!("u{n}: 1\n"))),
        ("long plain scalar", format!("a: {long}\n")),
        ("long quoted scalar", format!("a: \"{long}\"\n")),
        ("long block scalar", format!("a: |\n{}", repeated("  x\n"))),
        ("escapes", format!("a: \"{}\"\n", repeated("\\u0001"))),
        ("long anchor", format!("a: &{long} 1\nb: *{long}\n")),
        ("long tag", format!("a: !{long} 1\n")),
        ("many anchors", numbered(|n| format!("a{n}: &a{n} 1\n"))),
        ("many aliases", format!("a: &a {{b: 1}}\nc: [{}]\n", repeated("*a, "))),
        (
            "nested anchors",
            format!("{}a: {}", (0..90).map(|n| format!("&a{n} {{")).collect::<String>(), "}".repeat(90)),
        ),
        ("expanding aliases", {
            let mut text = format!("a0: &a0 [{}]\n", "x, ".repeat(10));
            for n in 1..100 {
                text += &format!("a{n}: &a{n} [{}]\n", format!("*a{}, ", n - 1).repeat(10));
            }
            text
        }),
        ("expanding merges", {
            let mut text = format!("a0: &a0 {{{}}}\n", numbered(|n| format!("k{n}: 1, ")));
            for n in 1..100 {
                text += &format!("a{n}: &a{n} {{<<: [{}]}}\n", format!("*a{}, ", n - 1).repeat(10));
            }
            text
        }),
        ("duplicate keys", repeated("a: 1\n")),
        ("comments", repeated("# x\n")),
        ("spaces", format!("a: {}1\n", " ".repeat(BYTES))),
        ("line feeds", "\n".repeat(BYTES)),
        ("colons", format!("a: {}", ":".repeat(BYTES))),
        ("quotes", format!("a: {}", "'".repeat(BYTES))),
        ("brackets", format!("a: {}", repeated("[]"))),
        ("flow pairs", format!("a: [{}]", numbered(|n| format!("k{n}: v, ")))),
        ("explicit keys", numbered(|n| format!("? k{n}\n: v\n"))),
        ("directives", repeated("%TAG ! a\n")),
        ("list of strings", numbered(|n| format!("- a{n}\n"))),
        ("users of a kubeconfig", format!("users:\n{}", repeated("- {}\n"))),
        ("users of a kubeconfig with a wrong type", format!("users:\n{}", repeated("- {name: a, user: 1}\n"))),
    ]
}
