//! Kubernetes Ingress and IngressClass.
//!
//! An Ingress may belong to another controller, so only values of the wrong type are reported.

use sluice_model::{
    Ingress, IngressBackend, IngressClass, IngressPath, IngressRule, IngressTls, Object, PathType, Text,
};

use crate::{Fields, Findings, Item};

const PATH_TYPES: [(&str, PathType); 3] = [
    ("ImplementationSpecific", PathType::ImplementationSpecific),
    ("Exact", PathType::Exact),
    ("Prefix", PathType::Prefix),
];

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    fields.ignore_rest();
    let ingress = Ingress {
        meta: item.meta(findings),
        class_name: fields.opt_text("ingressClassName"),
        tls: fields.list("tls", tls),
        rules: fields.list("rules", rule),
        status_addresses: item
            .object
            .pointer("/status/loadBalancer/ingress")
            .map_or_else(Text::default, |addresses| addresses.to_string().into()),
    };
    drop(fields);
    (!findings.has_errors()).then_some(Object::Ingress(ingress))
}

pub(crate) fn parse_class(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    fields.ignore_rest();
    let class = IngressClass { controller: fields.text("controller") };
    drop(fields);
    (!findings.has_errors()).then_some(Object::IngressClass(class))
}

fn tls(fields: &Fields<'_>) -> IngressTls {
    fields.ignore_rest();
    IngressTls { hosts: fields.texts("hosts"), secret_name: fields.text("secretName") }
}

fn rule(fields: &Fields<'_>) -> IngressRule {
    fields.ignore_rest();
    let paths = fields.read("http", |http| {
        http.ignore_rest();
        http.list("paths", path)
    });
    IngressRule { host: fields.text("host"), paths }
}

fn path(fields: &Fields<'_>) -> IngressPath {
    fields.ignore_rest();
    let backend = fields.object("backend").and_then(|backend| {
        backend.ignore_rest();
        backend.read("service", service)
    });
    IngressPath {
        path: fields.text("path"),
        path_type: fields.choice("pathType", &PATH_TYPES).unwrap_or_default(),
        backend,
    }
}

fn service(fields: &Fields<'_>) -> IngressBackend {
    fields.ignore_rest();
    let port = fields.object("port");
    if let Some(port) = &port {
        port.ignore_rest();
    }
    IngressBackend {
        service: fields.text("name"),
        port: port.as_ref().map(|port| port.integer("number")).unwrap_or_default(),
        port_name: port.as_ref().map(|port| port.text("name")).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sluice_model::Text;

    use super::*;
    use crate::parse_object;

    fn parsed(spec: serde_json::Value) -> (Option<Object>, Vec<Text>) {
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"name": "web", "namespace": "site"}, "spec": spec,
        });
        let parsed = parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("a known kind");
        (parsed.object, parsed.rejects.into_iter().map(|reject| reject.field_path).collect())
    }

    #[test]
    fn backend_port_is_a_number_or_a_name() {
        let (object, rejects) = parsed(json!({
            "ingressClassName": "istio",
            "defaultBackend": {"resource": {"kind": "Bucket", "name": "b"}},
            "tls": [{"hosts": ["a.example"], "secretName": "cert"}],
            "rules": [
                {"host": "a.example", "http": {"paths": [
                    {"path": "/x", "pathType": "Exact", "backend": {"service": {"name": "s", "port": {"number": 80}}}},
                    {"path": "/y", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"name": "web"}}}},
                    {"path": "/z", "backend": {"resource": {"kind": "Bucket", "name": "b"}}},
                ]}},
                {"host": "b.example"},
            ],
        }));
        assert!(rejects.is_empty(), "{rejects:?}");
        let Some(Object::Ingress(ingress)) = object else { panic!("no Ingress: {object:?}") };
        assert_eq!(ingress.class_name.as_deref(), Some("istio"));
        assert_eq!(ingress.tls[0].secret_name, *"cert");
        assert_eq!(ingress.rules[1].paths, None);
        let paths = ingress.rules[0].paths.as_ref().expect("paths");
        let types: Vec<PathType> = paths.iter().map(|path| path.path_type).collect();
        assert_eq!(types, [PathType::Exact, PathType::Prefix, PathType::ImplementationSpecific]);
        let ports: Vec<_> =
            paths.iter().map(|path| path.backend.as_ref().map(|to| (to.port, to.port_name.as_str()))).collect();
        assert_eq!(ports, [Some((80, "")), Some((0, "web")), None]);
    }

    #[test]
    fn wrong_types_are_reported_with_their_path() {
        let path = json!({"pathType": "Regex", "backend": {"service": {"name": 3, "port": {"number": 70000}}}});
        let (object, rejects) = parsed(json!({"rules": [{"http": {"paths": [path]}}]}));
        assert_eq!(object, None);
        let at = "spec.rules[0].http.paths[0]";
        let expected = ["backend.service.port.number", "backend.service.name", "pathType"].map(|f| format!("{at}.{f}"));
        let mut found: Vec<String> = rejects.iter().map(Text::to_string).collect();
        found.sort();
        let mut expected = expected.to_vec();
        expected.sort();
        assert_eq!(found, expected);
    }
}
