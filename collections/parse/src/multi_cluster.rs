//! ServiceExport and ServiceImport (S22).
//!
//! Other controllers write and validate these objects, so only the fields that are read are checked.

use std::net::IpAddr;

use sluice_model::{Object, ServiceExport, ServiceImport};

use crate::{Fields, Findings, Item};

pub(crate) fn parse_export(_: &Item<'_>, _: &Findings) -> Option<Object> {
    Some(Object::ServiceExport(ServiceExport))
}

pub(crate) fn parse_import(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    fields.ignore_rest();
    let mut ips = fields.texts("ips");
    ips.retain(|ip| {
        let is_ip = ip.parse::<IpAddr>().is_ok();
        if !is_ip {
            fields.reject("ips", format!("`{ip}` is not an IP address; it is ignored"));
        }
        is_ip
    });
    ips.sort();
    Some(Object::ServiceImport(ServiceImport { ips }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sluice_model::Kind;

    use super::*;
    use crate::parse_object;

    fn import(spec: &Value) -> (Option<Object>, Vec<(String, String)>) {
        let object = json!({
            "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceImport", "metadata": {"name": "a"}, "spec": spec,
        });
        let parsed = parse_object(&"c".into(), "cluster.local", &object).expect("a known kind");
        assert_eq!(parsed.kind, Kind::ServiceImport);
        let rejects = parsed.rejects.iter().map(|reject| (reject.field_path.to_string(), reject.reason.to_string()));
        (parsed.object, rejects.collect())
    }

    #[test]
    fn addresses_of_an_import_are_sorted_and_invalid_ones_are_reported() {
        let ips = |ips: &[&str]| {
            Some(Object::ServiceImport(ServiceImport { ips: ips.iter().map(|&ip| ip.into()).collect() }))
        };
        let spec = json!({"type": "ClusterSetIP", "ips": ["fd00::1", "10.0.0.2", "10.0.0.1"], "ports": []});
        assert_eq!(import(&spec), (ips(&["10.0.0.1", "10.0.0.2", "fd00::1"]), Vec::new()));
        let (object, rejects) = import(&json!({"ips": ["10.0.0.1", "host"]}));
        assert_eq!(object, ips(&["10.0.0.1"]));
        assert_eq!(rejects, [("spec.ips".to_owned(), "`host` is not an IP address; it is ignored".to_owned())]);
        assert_eq!(import(&json!({})).0, ips(&[]));
    }

    #[test]
    fn slices_that_are_copied_from_other_clusters_belong_to_no_service() {
        let service = |labels: Value| {
            let object = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "a", "labels": labels},
                "addressType": "IPv4", "endpoints": [],
            });
            match parse_object(&"c".into(), "cluster.local", &object).expect("a known kind").object {
                Some(Object::EndpointSlice(slice)) => slice.service.to_string(),
                other => panic!("not a slice: {other:?}"),
            }
        };
        assert_eq!(service(json!({"kubernetes.io/service-name": "cart"})), "cart");
        let copied = json!({"kubernetes.io/service-name": "cart", "multicluster.kubernetes.io/service-name": "cart"});
        assert_eq!(service(copied), "");
    }
}
