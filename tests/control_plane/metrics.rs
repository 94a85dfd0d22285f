//! The metrics of a running server: `docs/metrics.md` lists them, and dashboards and rules read them (O13 to O15).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::ads::{AdsStream, Kind, Protocol};
use sluice_testkit::secure::{CertificateRequest, ClientTls, signing_request};
use sluice_testkit::server::request;

use crate::identity::mesh::{CART, IdentityFixture};
use crate::identity::node;

/// What istiod exported in a small mesh, recorded: name, type, labels, buckets.
const RECORDED: &str = include_str!("metrics/istiod.txt");

/// Names and labels that Istio's own dashboard of the control plane reads, and that are exported.
const ISTIO_DASHBOARD: [(&str, &[&str]); 14] = [
    ("istio_build", &["component", "tag"]),
    ("pilot_xds_pushes", &["type"]),
    ("pilot_k8s_reg_events", &["type", "event"]),
    ("pilot_k8s_cfg_events", &["type", "event"]),
    ("pilot_push_triggers", &["type"]),
    ("pilot_xds", &[]),
    ("pilot_total_xds_rejects", &["type"]),
    ("pilot_total_xds_internal_errors", &[]),
    ("pilot_xds_push_time", &[]),
    ("pilot_xds_config_size_bytes", &[]),
    ("galley_validation_passed", &[]),
    ("galley_validation_failed", &[]),
    ("sidecar_injection_success_total", &[]),
    ("sidecar_injection_failure_total", &[]),
];

const OBJECTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.1.0.1, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: shop}
spec: {hosts: [cart], http: [{route: [{destination: {host: cart}}]}]}
";

/// Prefixes of the names of metrics.
const PREFIXES: [&str; 13] = [
    "auto_registration_",
    "citadel_",
    "controller_",
    "galley_",
    "grpc_server_",
    "istio_build",
    "istiod_",
    "pilot_",
    "process_",
    "remote_cluster_",
    "sidecar_injection_",
    "sluice_",
    "webhook_patch_",
];

/// A metric: its type, its labels and the bounds of its buckets.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Metric {
    kind: String,
    labels: BTreeSet<String>,
    buckets: Vec<String>,
    /// It has values.
    has_values: bool,
}

type Metrics = BTreeMap<String, Metric>;

fn page(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a file of the repository")
}

/// Texts between backticks.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The exported metrics of `docs/metrics.md`, and the patterns of those that are not.
fn documented() -> (Metrics, BTreeSet<String>) {
    let (mut exported, mut absent) = (Metrics::new(), BTreeSet::new());
    for line in page("docs/metrics.md").lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match cells.as_slice() {
            [name, kind, labels, _] => {
                let metric = Metric { kind: (*kind).to_owned(), labels: quoted(labels), ..Metric::default() };
                let before = exported.insert(name.trim_matches('`').to_owned(), metric);
                assert_eq!(before, None, "{name} is listed twice");
            }
            [names, _] => absent.extend(quoted(names)),
            _ => panic!("{line}"),
        }
    }
    assert!(exported.len() > 80 && absent.len() > 10, "the tables are found");
    (exported, absent)
}

/// The names of metrics in the code of the server.
fn registered() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                // The agent has metrics of its own.
                directories.extend((!entry.ends_with("src/agent") && !entry.ends_with("tests")).then_some(entry));
                continue;
            }
            // The modules of the scopes of the log have similar names.
            if entry.extension().is_none_or(|extension| extension != "rs") || entry.ends_with("levels.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&entry).expect("a source file");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let literals = code.split('"').filter(|literal| {
                PREFIXES.iter().any(|prefix| literal.starts_with(prefix))
                    && literal.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            });
            names.extend(literals.map(str::to_owned));
        }
    }
    names
}

/// The name and the labels of a line, without the value.
fn series(line: &str) -> (&str, BTreeMap<String, String>) {
    let end = line.rfind(' ').expect("a value");
    let (name, labels) = line[..end].split_once('{').unwrap_or((&line[..end], ""));
    let mut out = BTreeMap::new();
    // No value in these tests contains a quote.
    let mut parts = labels.trim_end_matches('}').split('"');
    while let (Some(label), Some(value)) = (parts.next(), parts.next()) {
        out.insert(label.trim_start_matches(',').trim_end_matches('=').to_owned(), value.to_owned());
    }
    (name, out)
}

/// The metrics of a page.
fn scraped(text: &str) -> Metrics {
    let mut metrics = Metrics::new();
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').expect("a type");
            let before = metrics.insert(name.to_owned(), Metric { kind: kind.to_owned(), ..Metric::default() });
            assert_eq!(before, None, "{name} is exported twice");
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, mut labels) = series(line);
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| {
            let base = name.strip_suffix(suffix)?;
            metrics.get(base).is_some_and(|metric| metric.kind == "histogram").then_some(base)
        });
        let metric = metrics.get_mut(base.unwrap_or(name)).unwrap_or_else(|| panic!("{line} has no type"));
        if let Some(bound) = labels.remove("le").filter(|_| base.is_some())
            && bound != "+Inf"
        {
            let bound: f64 = bound.parse().expect("a bound");
            let bound = bound.to_string();
            if !metric.buckets.contains(&bound) {
                metric.buckets.push(bound);
            }
        }
        metric.has_values = true;
        metric.labels.extend(labels.into_keys());
    }
    metrics
}

/// A mesh in which most metrics have values.
async fn scenario() -> Result<(IdentityFixture, Metrics)> {
    let objects = tempfile::tempdir()?;
    std::fs::write(objects.path().join("objects.yaml"), OBJECTS)?;
    let mesh = IdentityFixture::start(&[&format!("--configDir={}", objects.path().display())]).await;
    let (_, csr) = signing_request()?;
    let channel = mesh.connect(&ClientTls::default()).await;
    CertificateRequest::with_token(&csr, &mesh.token(CART)).send(&channel).await.ok().context("a certificate")?;
    ensure!(CertificateRequest::with_token(&csr, "no token").send(&channel).await.is_err());

    let mut proxy =
        AdsStream::open_with_token(channel.clone(), Protocol::Delta, node("shop", "cart"), &mesh.token(CART))?;
    for kind in [Kind::Cds, Kind::Lds] {
        proxy.subscribe(kind.type_url(), &[], BTreeMap::new())?;
        let update = proxy.next().await?.context("a response")?;
        proxy.nack(&update, "a refusal of the test")?;
    }
    let mut refused = AdsStream::open_with_token(channel, Protocol::Delta, node("bank", "cart"), &mesh.token(CART))?;
    let _ = refused.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new());
    ensure!(refused.next().await.is_err(), "the node is not that of the caller");

    let origin = [("origin", "http://elsewhere.example")];
    ensure!(request(mesh.server.http, "GET", "/debug/syncz", &origin, "").await?.status == 403);
    let gateway = |name: &str, spec: Value| {
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "1", "operation": "CREATE", "dryRun": false,
                "kind": {"group": "networking.istio.io", "version": "v1", "kind": "Gateway"},
                "resource": {"group": "networking.istio.io", "version": "v1", "resource": "gateways"},
                "namespace": "shop", "name": name,
                "object": {
                    "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
                    "metadata": {"name": name, "namespace": "shop"}, "spec": spec,
                },
            },
        })
        .to_string()
    };
    let servers = json!({"servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]});
    let json = [("content-type", "application/json")];
    for (path, body) in [
        ("/validate", gateway("valid", servers)),
        ("/validate", gateway("invalid", json!({"servers": 7}))),
        ("/validate", String::new()),
        ("/inject", "{".to_owned()),
    ] {
        request(mesh.server.http, "POST", path, &json, &body).await?;
    }
    let mut metrics = Metrics::new();
    for _ in 0..200 {
        metrics = scraped(&mesh.server.get("/metrics").await?.1);
        if metrics["pilot_total_xds_rejects"].has_values {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop((proxy, refused));
    Ok((mesh, metrics))
}

#[tokio::test(flavor = "multi_thread")]
async fn exported_metrics_are_those_of_the_documentation_and_of_istiod() -> Result<()> {
    let (_mesh, metrics) = scenario().await?;
    let (documented, absent) = documented();
    let mut findings = Vec::new();
    for (name, metric) in &metrics {
        let Some(described) = documented.get(name) else {
            findings.push(format!("{name} is not in docs/metrics.md"));
            continue;
        };
        if described.kind != metric.kind || (metric.has_values && described.labels != metric.labels) {
            findings.push(format!("{name}: documented {described:?} exported {metric:?}"));
        }
    }
    let registered = registered();
    let names: BTreeSet<String> = documented.keys().cloned().collect();
    findings.extend(names.difference(&registered).map(|name| format!("{name} is not in the code")));
    findings.extend(registered.difference(&names).map(|name| format!("{name} is not in docs/metrics.md")));

    let is_absent = |name: &str| {
        absent.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        })
    };
    for line in RECORDED.lines() {
        let [name, kind, labels, buckets] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let list = |text: &str| -> Vec<String> { text.split(',').filter(|it| *it != "-").map(str::to_owned).collect() };
        // A metric without values has no row.
        let ours = match (metrics.get(name).or_else(|| documented.get(name)), is_absent(name)) {
            (Some(ours), false) => ours,
            (None, true) => continue,
            _ => {
                findings.push(format!("{name} of istiod is neither documented nor listed as absent"));
                continue;
            }
        };
        let labels: BTreeSet<String> = list(labels).into_iter().collect();
        let bounds = list(buckets).into_iter().map(|bound| bound.parse::<f64>().expect("a bound").to_string());
        let missing: Vec<String> = bounds.filter(|bound| !ours.buckets.contains(bound)).collect();
        // Only the injection time has buckets that istiod lacks.
        let more = if name == "sidecar_injection_time_seconds" { 3 } else { 0 };
        let is_equal = missing.is_empty() && ours.buckets.len() == list(buckets).len() + more;
        let has_row = metrics.contains_key(name);
        if kind != ours.kind || (ours.has_values || !has_row) && labels != ours.labels || has_row && !is_equal {
            findings.push(format!("{line} of istiod, here {ours:?}"));
        }
    }
    let with_values = [
        "citadel_server_authentication_failure_count",
        "galley_validation_failed",
        "galley_validation_http_error",
        "galley_validation_passed",
        "grpc_server_handled_total",
        "grpc_server_handling_seconds",
        "pilot_debounce_time",
        "pilot_inbound_updates",
        "pilot_k8s_cfg_events",
        "pilot_k8s_reg_events",
        "pilot_total_xds_rejects",
        "pilot_xds",
        "pilot_xds_cds_reject",
        "pilot_xds_config_size_bytes",
        "pilot_xds_lds_reject",
        "pilot_xds_pushes",
        "sluice_debug_refused",
        "sluice_xds_refused",
    ];
    findings.extend(
        with_values
            .iter()
            .filter(|name| !metrics.get(**name).is_some_and(|metric| metric.has_values))
            .map(|name| format!("{name} has no values")),
    );
    for (name, labels) in ISTIO_DASHBOARD {
        let documented = &documented[name].labels;
        findings.extend(
            labels
                .iter()
                .filter(|label| !documented.contains(**label))
                .map(|label| format!("{name} has no label {label}, which Istio's dashboard reads")),
        );
    }
    ensure!(findings.is_empty(), "{}", findings.join("\n"));
    Ok(())
}

/// The names of metrics and labels that an expression of PromQL reads, without functions and keywords.
fn read_by(expression: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut metrics, mut labels) = (BTreeSet::new(), BTreeSet::new());
    let mut rest = expression;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    // Inside `by (..)` and `{..}`, names are those of labels.
    let mut label_depth = 0;
    let mut previous = String::new();
    while let Some(first) = rest.chars().next() {
        if first == '"' {
            rest = rest[1..].split_once('"').map_or("", |(_, rest)| rest);
        } else if first == '[' {
            rest = rest.split_once(']').map_or("", |(_, rest)| rest);
        } else if first == '{' || (first == '(' && matches!(previous.as_str(), "by" | "without" | "on" | "ignoring")) {
            label_depth += 1;
            previous.clear();
            rest = &rest[1..];
        } else if (first == '}' || first == ')') && label_depth > 0 {
            label_depth -= 1;
            rest = &rest[1..];
        } else if first.is_ascii_alphabetic() || first == '_' {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            let keyword = matches!(name, "by" | "without" | "on" | "ignoring" | "and" | "or" | "unless" | "bool");
            let is_function = ["(", "by ", "without "].iter().any(|next| after.trim_start().starts_with(next));
            if label_depth > 0 {
                labels.insert(name.to_owned());
            } else if !keyword && !is_function {
                metrics.insert(name.to_owned());
            }
            name.clone_into(&mut previous);
            rest = after;
        } else {
            let digits = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len()).max(1);
            rest = &rest[digits..];
        }
    }
    (metrics, labels)
}

/// The expressions of the dashboard and of the rules, each with its place; and the names that rules record.
fn expressions() -> (Vec<(String, String)>, BTreeSet<String>) {
    let dashboard: Value = serde_json::from_str(&page("manifests/dashboards/sluice.json")).expect("JSON");
    let mut out = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().expect("an expression").replace("$__rate_interval", "5m");
            out.push((format!("panel {}", panel["title"]), expression));
        }
    }
    let rules = page("manifests/dashboards/rules.yaml");
    let rules = sluice_parse::yaml::parse_value(&rules, &sluice_parse::yaml::Limits::default()).expect("YAML");
    let groups = rules["spec"]["groups"].as_array().expect("groups").clone();
    let mut recorded = BTreeSet::new();
    for rule in groups.iter().flat_map(|group| group["rules"].as_array().expect("rules")) {
        let name = rule["record"].as_str().or_else(|| rule["alert"].as_str()).expect("a name");
        recorded.extend(rule["record"].as_str().map(str::to_owned));
        out.push((format!("rule {name}"), rule["expr"].as_str().expect("an expression").to_owned()));
    }
    (out, recorded)
}

/// The names and labels of `docs/metrics.md` are those of a running server: see the test above.
#[test]
fn dashboard_and_rules_read_exported_metrics_only() -> Result<()> {
    let (documented, _) = documented();
    let (expressions, recorded) = expressions();
    ensure!(expressions.len() > 30, "{} expressions", expressions.len());
    let mut findings = Vec::new();
    for (place, expression) in &expressions {
        let (names, labels) = read_by(expression);
        ensure!(!names.is_empty(), "{place}: {expression} reads nothing");
        // What Prometheus adds to each series.
        let mut known: BTreeSet<String> = ["job", "pod", "namespace", "le"].map(str::to_owned).into();
        for name in names {
            if recorded.contains(&name) {
                continue;
            }
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| {
                let base = name.strip_suffix(suffix)?;
                documented.get(base).is_some_and(|metric| metric.kind == "histogram").then_some(base)
            });
            match documented.get(base.unwrap_or(&name)).filter(|metric| base.is_some() || metric.kind != "histogram") {
                Some(metric) => known.extend(metric.labels.iter().cloned()),
                None => findings.push(format!("{place}: {name} is not exported")),
            }
        }
        findings.extend(labels.difference(&known).map(|label| format!("{place}: no metric has label {label}")));
    }
    ensure!(findings.is_empty(), "{}", findings.join("\n"));
    Ok(())
}

#[test]
fn expressions_are_read() {
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let expression = "sum by (le, type) (rate(a_bucket{job=\"x\",type!~\"y z\"}[5m])) / on (pod) b > 0.5 and c:d:e";
    assert_eq!(read_by(expression), (names(&["a_bucket", "b", "c:d:e"]), names(&["le", "type", "job", "pod"])));
    assert_eq!(read_by("histogram_quantile(0.99, x) > 1e3"), (names(&["x"]), names(&[])));
}
