//! The object of a waypoint.

use serde_json::{Value, json};

use super::args::WaypointFlags;
use super::cluster::{CLASS, WAYPOINT_FOR};
use crate::connect::QueryError;

/// Value of label `istio.io/use-waypoint` for no waypoint.
const RESERVED: &str = "none";

/// A name that a waypoint can have.
pub(super) fn check_name(name: &str) -> Result<(), QueryError> {
    match name {
        RESERVED => Err(QueryError::Flags(format!("--name {name:?} is reserved: it stands for no waypoint"))),
        "" => Err(QueryError::Flags("--name is empty".to_owned())),
        _ => Ok(()),
    }
}

/// The Gateway of a waypoint.
pub(super) fn gateway(flags: &WaypointFlags, namespace: &str) -> Value {
    let mut metadata = json!({"name": flags.name});
    if !namespace.is_empty() {
        metadata["namespace"] = namespace.into();
    }
    if let Some(traffic) = flags.traffic {
        metadata["labels"][WAYPOINT_FOR] = traffic.text().into();
    }
    if let Some(revision) = &flags.revision {
        metadata["labels"]["istio.io/rev"] = revision.as_str().into();
    }
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": metadata,
        "spec": {"gatewayClassName": CLASS, "listeners": [{"name": "mesh", "port": 15_008, "protocol": "HBONE"}]},
    })
}

#[cfg(test)]
mod tests {
    use super::super::args::TrafficType;
    use super::*;

    #[test]
    fn waypoint_is_that_of_istioctl() {
        let flags = WaypointFlags {
            name: "waypoint".to_owned(),
            traffic: Some(TrafficType::All),
            revision: Some("canary".to_owned()),
        };
        let expected = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  labels:
    istio.io/rev: canary
    istio.io/waypoint-for: all
  name: waypoint
  namespace: shop
spec:
  gatewayClassName: istio-waypoint
  listeners:
  - name: mesh
    port: 15008
    protocol: HBONE
";
        assert_eq!(serde_yaml_ng::to_string(&gateway(&flags, "shop")).expect("YAML"), expected);
        let plain = gateway(&WaypointFlags { traffic: None, revision: None, ..flags }, "");
        assert_eq!(plain["metadata"], json!({"name": "waypoint"}));
    }

    #[test]
    fn reserved_name_is_refused() {
        assert!(check_name("waypoint").is_ok());
        for name in ["none", ""] {
            assert_eq!(check_name(name).expect_err("refused").exit_code(1), 2);
        }
    }
}
