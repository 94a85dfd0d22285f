//! The ProxyConfig resource (C18).

use sluice_model::{Object, ProxyConfigResource};

use crate::attachment::workload_selector;
use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let concurrency = fields.opt_integer("concurrency");
    if concurrency.is_some_and(|count: i32| count < 0) {
        fields.refuse("concurrency", "expected an integer of at least 0");
    }
    let resource = ProxyConfigResource {
        namespace: meta.namespace,
        name: meta.name,
        created: meta.created,
        selector: workload_selector(&fields),
        concurrency,
        environment: fields.text_map("environmentVariables"),
        image_type: fields.read("image", |image| image.text("imageType")).unwrap_or_default(),
    };
    drop(fields);
    (!findings.has_errors()).then_some(Object::ProxyConfig(resource))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sluice_model::{Object, ParsedObject};

    use crate::parse_object;

    fn parse(spec: &Value) -> ParsedObject {
        let object = json!({
            "apiVersion": "networking.istio.io/v1beta1",
            "kind": "ProxyConfig",
            "metadata": {"namespace": "harbor", "name": "p"},
            "spec": spec,
        });
        parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("an object")
    }

    #[test]
    fn all_fields_are_read() {
        let spec = json!({
            "selector": {"matchLabels": {"app": "web"}},
            "concurrency": 0,
            "image": {"imageType": "distroless"},
            "environmentVariables": {"A": "b"},
        });
        let parsed = parse(&spec);
        assert_eq!(parsed.rejects, []);
        let Some(Object::ProxyConfig(resource)) = parsed.object else { panic!("a resource") };
        assert_eq!((resource.concurrency, resource.image_type.as_str()), (Some(0), "distroless"));
        assert_eq!(resource.selector, Some([("app".into(), "web".into())].into()));
        assert_eq!(resource.environment, [("A".into(), "b".into())].into());
    }

    #[test]
    fn negative_concurrency_and_wildcard_selectors_are_refused() {
        let path = |spec: Value| {
            let parsed = parse(&spec);
            assert!(parsed.rejects.iter().any(|reject| reject.severity.is_refusal()), "{spec}");
            parsed.rejects.iter().map(|reject| reject.field_path.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(path(json!({"concurrency": -2})), "spec.concurrency");
        assert_eq!(path(json!({"selector": {"matchLabels": {"a": "*"}}})), "spec.selector.matchLabels[a]");
    }
}
