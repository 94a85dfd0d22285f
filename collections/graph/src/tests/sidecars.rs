//! The resources that Sidecars touch.

use sluice_model::{Kind, View};

use super::cases::state;
use super::{TestGraph, sidecar};
use crate::GraphOptions;

const TOWN: &str = "
apiVersion: v1
kind: Service
metadata: {name: mill, namespace: east}
spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}, {name: tcp, port: 9000}]}
---
apiVersion: v1
kind: Service
metadata: {name: forge, namespace: east}
spec: {clusterIP: 10.0.0.2, ports: [{name: tcp, port: 9000}]}
---
apiVersion: v1
kind: Service
metadata: {name: school, namespace: north}
spec: {clusterIP: 10.0.0.3, ports: [{name: http, port: 80}]}
";

/// A Sidecar for all workloads of namespace `east`.
fn limit(hosts: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: limit, namespace: east}}\n\
         spec: {{egress: [{{hosts: {hosts}}}]}}\n"
    )
}

/// A mesh with a sidecar in the east and one in the north, without pending changes.
fn test_mesh() -> TestGraph {
    let mut mesh = TestGraph::new(TOWN);
    for (namespace, ip) in [("east", "10.9.0.1"), ("north", "10.9.0.2")] {
        mesh.connect(sidecar(namespace, "client", ip, &[("app", "client")]));
    }
    mesh.changed();
    mesh
}

/// The changes in the views of Sidecars.
fn of_sidecars(lines: &[String]) -> Vec<String> {
    lines.iter().filter(|line| line.contains(" sidecar:")).cloned().collect()
}

#[test]
fn a_sidecar_is_a_view_of_the_hosts_it_lists() {
    let mut mesh = test_mesh();
    mesh.apply(&limit("[east/mill.east.svc.cluster.local]"));
    let changed = mesh.changed();
    assert_eq!(
        of_sidecars(&changed),
        [
            "+clusters/outbound sidecar:east/limit outbound|80||mill.east.svc.cluster.local",
            "+clusters/outbound sidecar:east/limit outbound|9000||mill.east.svc.cluster.local",
            "+endpoint_assignments sidecar:east/limit outbound|80||mill.east.svc.cluster.local",
            "+endpoint_assignments sidecar:east/limit outbound|9000||mill.east.svc.cluster.local",
            "+listeners/outbound-resources sidecar:east/limit 0.0.0.0_80",
            "+listeners/outbound-resources sidecar:east/limit 10.0.0.1_9000",
            "+name_tables/entries sidecar:east/limit  mill.east.svc.cluster.local",
            "+routes/headers sidecar:east/limit 80 ",
            "+routes/headers sidecar:east/limit 80 allow_any",
            "+routes/virtual-hosts sidecar:east/limit 80 mill.east.svc.cluster.local:80",
        ]
    );
    // Otherwise only the proxy's own resources change: its scope, and its inbound clusters and listeners.
    let rest: Vec<&String> = changed.iter().filter(|line| !line.contains(" sidecar:")).collect();
    let own = |line: &str| line.contains("scopes sidecar~") || line.contains(" workload:east#");
    assert!(rest.iter().all(|line| own(line)), "{rest:#?}");
    // The Sidecar lists one more host, and only that host is touched.
    mesh.apply(&limit("[east/mill.east.svc.cluster.local, north/school.north.svc.cluster.local]"));
    assert_eq!(
        mesh.changed(),
        [
            "+clusters/outbound sidecar:east/limit outbound|80||school.north.svc.cluster.local",
            "+endpoint_assignments sidecar:east/limit outbound|80||school.north.svc.cluster.local",
            "+name_tables/entries sidecar:east/limit  school.north.svc.cluster.local",
            "+routes/virtual-hosts sidecar:east/limit 80 school.north.svc.cluster.local:80",
        ]
    );
    // An equivalent list of hosts is no change.
    mesh.apply(&limit("[./mill.east.svc.cluster.local, north/*]"));
    assert_eq!(mesh.changed(), Vec::<String>::new());
}

#[test]
fn a_host_that_a_sidecar_does_not_list_does_not_touch_it() {
    let mut mesh = test_mesh();
    mesh.apply(&limit("[./mill.east.svc.cluster.local]"));
    mesh.changed();
    mesh.apply(
        "
apiVersion: v1
kind: Service
metadata: {name: forge, namespace: east}
spec: {clusterIP: 10.0.0.2, ports: [{name: tcp, port: 9000}, {name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: bank, namespace: north}
spec: {clusterIP: 10.0.0.4, ports: [{name: http, port: 80}, {name: tcp, port: 7000}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: forge, namespace: east}
spec: {host: forge, trafficPolicy: {loadBalancer: {simple: RANDOM}}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: school, namespace: north}
spec: {hosts: [school], http: [{timeout: 1s, route: [{destination: {host: bank}}]}]}
",
    );
    let changed = mesh.changed();
    assert!(changed.len() > 8, "{changed:#?}");
    assert_eq!(of_sidecars(&changed), Vec::<String>::new());
    // A VirtualService of a listed host adds its destination.
    mesh.apply(
        "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: mill, namespace: east}
spec: {hosts: [mill], http: [{route: [{destination: {host: forge, port: {number: 80}}}]}]}
",
    );
    assert_eq!(
        of_sidecars(&mesh.changed()),
        [
            "+clusters/outbound sidecar:east/limit outbound|80||forge.east.svc.cluster.local",
            "+endpoint_assignments sidecar:east/limit outbound|80||forge.east.svc.cluster.local",
            "~routes/virtual-hosts sidecar:east/limit 80 mill.east.svc.cluster.local:80",
        ]
    );
}

#[test]
fn removing_a_sidecar_restores_the_mesh() {
    let mesh = test_mesh();
    let before = state(&mesh.engine, &mesh.handles);
    let spec = "
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: limit, namespace: istio-system}
spec:
  egress:
    - {port: {number: 9000, protocol: TCP, name: tcp}, bind: 127.0.0.3, hosts: ['./*']}
    - {hosts: ['*/school.north.svc.cluster.local']}
  outboundTrafficPolicy: {mode: REGISTRY_ONLY}
  inboundConnectionPool: {tcp: {maxConnections: 3}}
";
    mesh.apply(spec);
    let during = state(&mesh.engine, &mesh.handles);
    assert!(during.keys().any(|key| key.contains("127.0.0.3_9000")));
    mesh.delete(Kind::Sidecar, "istio-system", "limit");
    let after = state(&mesh.engine, &mesh.handles);
    assert_eq!(before.len(), after.len());
    for (key, value) in &before {
        assert_eq!(after.get(key), Some(value), "{key}");
    }
    assert_ne!(before, during);
}

#[test]
fn the_sidecar_of_a_proxy_is_the_nearest() {
    let mut mesh = test_mesh();
    let key = mesh.connect(sidecar("east", "other", "10.9.0.3", &[("app", "other")]));
    let view = |mesh: &TestGraph| {
        let scope = mesh.get(&mesh.handles.scopes, &key).expect("connected");
        let layers = &scope.layers[&sluice_model::ResourceType::Endpoint];
        match &layers[0].view {
            View::Sidecar { scope, .. } => scope.to_string(),
            view => format!("{view:?}"),
        }
    };
    let declare = |namespace: &str, name: &str, created: &str, selector: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: {name}, namespace: {namespace}, \
             creationTimestamp: '{created}'}}\nspec: {{{selector} egress: [{{hosts: [./*]}}]}}\n"
        )
    };
    assert_eq!(view(&mesh), "Namespace(\"east\")");
    mesh.apply(&declare("istio-system", "default", "2026-01-01T00:00:00Z", ""));
    assert_eq!(view(&mesh), "east,istio-system/default");
    mesh.apply(&declare("istio-system", "picky", "2025-01-01T00:00:00Z", "workloadSelector: {labels: {app: other}},"));
    assert_eq!(view(&mesh), "east,istio-system/default");
    mesh.apply(&declare("east", "all", "2026-01-02T00:00:00Z", ""));
    assert_eq!(view(&mesh), "east/all");
    mesh.apply(&declare("east", "young", "2026-01-04T00:00:00Z", "workloadSelector: {labels: {app: other}},"));
    assert_eq!(view(&mesh), "east/young");
    mesh.apply(&declare("east", "old", "2026-01-03T00:00:00Z", "workloadSelector: {labels: {app: other}},"));
    assert_eq!(view(&mesh), "east/old");
    mesh.apply(&declare("east", "stranger", "2026-01-01T00:00:00Z", "workloadSelector: {labels: {app: client}},"));
    assert_eq!(view(&mesh), "east/old");
    mesh.changed();
    mesh.delete(Kind::Sidecar, "east", "old");
    mesh.delete(Kind::Sidecar, "east", "young");
    assert_eq!(view(&mesh), "east/all");
}

#[test]
fn a_sidecar_without_limits_shares_the_base_view() {
    let mut mesh = test_mesh();
    mesh.apply(
        "
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: pool, namespace: east}
spec: {egress: [{hosts: ['*/*']}], inboundConnectionPool: {tcp: {maxConnections: 3}}}
",
    );
    let changed = mesh.changed();
    let own = |line: &str| line.contains("scopes sidecar~") || line.contains(" workload:east#");
    assert!(!changed.is_empty() && changed.iter().all(|line| own(line)), "{changed:#?}");
}

#[test]
fn proxies_with_selected_labels_get_only_differences() {
    let mut mesh = test_mesh();
    mesh.apply(&limit("[./mill.east.svc.cluster.local]"));
    mesh.changed();
    mesh.apply(
        "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: mill, namespace: east}
spec:
  host: mill
  workloadSelector: {matchLabels: {app: client}}
  trafficPolicy: {connectionPool: {tcp: {maxConnections: 3}}}
",
    );
    assert_eq!(
        of_sidecars(&mesh.changed()),
        [
            "+clusters/outbound sidecar:east/limit,app=client outbound|80||mill.east.svc.cluster.local",
            "+clusters/outbound sidecar:east/limit,app=client outbound|9000||mill.east.svc.cluster.local",
        ]
    );
}

#[test]
fn service_of_a_destination_is_the_oldest_or_the_first_by_namespace() {
    let entry = |namespace: &str, created: &str, port: u16| {
        format!(
            "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: api, namespace: {namespace}, creationTimestamp: '{created}'}}
spec: {{hosts: [api.example], resolution: DNS, ports: [{{number: {port}, name: http, protocol: HTTP}}]}}
---"
        )
    };
    let text = [
        TOWN.to_owned() + "---",
        entry("central", "2026-02-01T00:00:00Z", 81),
        entry("west", "2026-01-01T00:00:00Z", 82),
        "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: north}
spec: {hosts: [shop.example], http: [{route: [{destination: {host: api.example}}]}]}
---
"
        .to_owned(),
        limit("[north/shop.example]"),
    ];
    for (reaches_best_service, port) in [(true, 82), (false, 81)] {
        let options = GraphOptions { reaches_best_service, ..GraphOptions::default() };
        let mut mesh = TestGraph::with(options, &text.concat());
        mesh.connect(sidecar("east", "client", "10.9.0.1", &[("app", "client")]));
        let mut clusters = of_sidecars(&mesh.changed());
        clusters.retain(|line| line.contains("clusters/outbound ") && line.contains("api.example"));
        assert_eq!(clusters, [format!("+clusters/outbound sidecar:east/limit outbound|{port}||api.example")]);
    }
}
