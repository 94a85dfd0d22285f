//! The webhook configurations that inject, with their namespaces, their server, and the proxy that they add.

use std::collections::BTreeSet;
use std::io::{self, Write};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{GAP, InjectionState, ca_bundle, name_of};
use crate::answer_output::{joined, list, text};
use crate::check_inject::selection;
use crate::columns::{print_columns, table};

const TITLES: [&str; 6] = ["NAMESPACES", "INJECTOR-HOOK", "ISTIO-REVISION", "SIDECAR-IMAGE", "SERVER", "CA-BUNDLE"];
/// What stands in the table for a namespace if the configuration injects none by its labels alone.
const NO_NAMESPACE: &str = "DOES NOT AUTOINJECT";
/// Port of a Service that a webhook does not state.
const DEFAULT_PORT: i64 = 443;

impl InjectionState {
    pub(super) fn injector(&self, configuration: &Value, now: Timestamp) -> Value {
        let labels = &configuration["metadata"]["labels"];
        let revision = text(labels, "istio.io/rev");
        let injects = |it: &&Value| selection::of(configuration, &Value::Null, &it["metadata"]["labels"]).is_injected;
        let namespaces: Vec<&str> = self.namespaces.iter().filter(injects).map(name_of).collect();
        let clients = list(configuration, "webhooks").iter().map(|webhook| &webhook["clientConfig"]);
        let servers: BTreeSet<String> = clients.clone().map(server).collect();
        let bundles: BTreeSet<String> = clients.map(|client| ca_bundle::state(text(client, "caBundle"), now)).collect();
        json!({
            "name": name_of(configuration),
            "revision": revision,
            "tag": text(labels, "istio.io/tag"),
            "namespaces": namespaces,
            "image": self.proxy_image(revision),
            "servers": servers,
            "caBundles": bundles,
        })
    }

    /// The image of proxies by the values of a revision; empty if these are not known.
    fn proxy_image(&self, revision: &str) -> String {
        let of_revision = self.config_maps.iter().filter(|it| it["metadata"]["labels"]["istio.io/rev"] == revision);
        let mut values =
            of_revision.filter_map(|it| serde_json::from_str::<Value>(it["data"]["values"].as_str()?).ok());
        values.next().map(|values| image(&values["global"])).unwrap_or_default()
    }
}

fn image(global: &Value) -> String {
    let name = text(&global["proxy"], "image");
    // The tag may be a number.
    let tag = match &global["tag"] {
        Value::String(tag) => tag.clone(),
        Value::Null => String::new(),
        tag => tag.to_string(),
    };
    // A name with a registry is that of a whole image, as in the templates.
    if name.contains('/') { name.to_owned() } else { format!("{}/{name}:{tag}", text(global, "hub")) }
}

/// The URL of a webhook, or its Service.
fn server(client: &Value) -> String {
    if let Some(url) = client["url"].as_str() {
        return url.to_owned();
    }
    let service = &client["service"];
    let port = service["port"].as_i64().unwrap_or(DEFAULT_PORT);
    format!("{}.{}:{port}{}", text(service, "name"), text(service, "namespace"), text(service, "path"))
}

/// A row for each namespace of a configuration.
pub(super) fn print_table(injectors: &[Value], out: &mut dyn Write) -> io::Result<()> {
    if injectors.is_empty() {
        return writeln!(out, "No Istio injection hooks present.");
    }
    let rows = injectors.iter().flat_map(|injector| {
        let namespaces = list(injector, "namespaces").iter().filter_map(Value::as_str);
        let namespaces: Vec<&str> = namespaces.collect();
        let namespaces = if namespaces.is_empty() { vec![NO_NAMESPACE] } else { namespaces };
        let of = ["name", "revision", "image"].map(|field| text(injector, field).to_owned());
        let server = [joined(injector, "servers", ","), joined(injector, "caBundles", ", ")];
        namespaces.into_iter().map(move |namespace| {
            std::iter::once(namespace.to_owned()).chain(of.clone()).chain(server.clone()).collect::<Vec<_>>()
        })
    });
    print_columns(&table(&TITLES, rows), GAP, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_a_hub_and_a_tag_unless_their_name_has_a_registry() {
        let of = |image_name: &str, tag: Value| {
            image(&json!({"hub": "registry/istio", "tag": tag, "proxy": {"image": image_name}}))
        };
        assert_eq!(of("proxyv2", json!("1.31")), "registry/istio/proxyv2:1.31");
        assert_eq!(of("proxyv2", json!(7)), "registry/istio/proxyv2:7");
        assert_eq!(of("other/own:2", json!("1.31")), "other/own:2");
    }

    #[test]
    fn servers_are_urls_or_services() {
        let service =
            json!({"service": {"name": "istiod", "namespace": "istio-system", "path": "/inject", "port": 8443}});
        assert_eq!(server(&service), "istiod.istio-system:8443/inject");
        assert_eq!(server(&json!({"service": {"name": "a", "namespace": "b"}})), "a.b:443");
        assert_eq!(server(&json!({"url": "https://east.example/inject"})), "https://east.example/inject");
    }

    #[test]
    fn configuration_that_needs_labels_of_pods_injects_no_namespace_by_itself() {
        let configuration = json!({
            "metadata": {"name": "own", "labels": {"istio.io/rev": "canary"}},
            "webhooks": [{
                "name": "object.sidecar-injector.istio.io",
                "objectSelector": {"matchLabels": {"sidecar.istio.io/inject": "true"}},
                "clientConfig": {"url": "https://east.example/inject"},
            }],
        });
        let values = json!({"global": {"hub": "istio", "tag": "1", "proxy": {"image": "proxyv2"}}}).to_string();
        let map = |revision: &str, values: &str| json!({"metadata": {"labels": {"istio.io/rev": revision}}, "data": {"values": values}});
        let state = InjectionState {
            namespaces: vec![json!({"metadata": {"name": "shop"}})],
            configurations: Vec::new(),
            pods: Vec::new(),
            config_maps: vec![map("stable", "{}"), map("canary", "not JSON"), map("canary", &values)],
        };
        let injector = state.injector(&configuration, Timestamp::UNIX_EPOCH);
        let mut out = Vec::new();
        print_table(&[injector], &mut out).expect("written");
        let expected = "\
NAMESPACES          INJECTOR-HOOK ISTIO-REVISION SIDECAR-IMAGE   SERVER                      CA-BUNDLE
DOES NOT AUTOINJECT own           canary         istio/proxyv2:1 https://east.example/inject none
";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
