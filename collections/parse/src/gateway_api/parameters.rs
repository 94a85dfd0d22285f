//! ConfigMaps with overlays of the objects that are deployed for Gateways (G04).

use std::collections::BTreeMap;

use serde_json::Value;
use sluice_model::gateway_api::{GatewayParameters, OVERLAY_KEYS};
use sluice_model::{Text, label};

use crate::yaml::{Limits, parse_value};
use crate::{Findings, Item};

/// Parses a ConfigMap that has an overlay, or the defaults of a class, or no data. `None` if it is another one: it counts as
/// absent where a Gateway refers to it. Problems are no findings here: a ConfigMap that no Gateway uses can have any data.
pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Box<GatewayParameters>> {
    let data = item.object.get("data").and_then(Value::as_object);
    let entries = || data.into_iter().flatten();
    let is_overlay = |name: &str| OVERLAY_KEYS.contains(&name);
    let labels = item.object.pointer("/metadata/labels");
    let class = labels.and_then(|labels| labels.get(label::DEFAULTS_FOR_CLASS)).and_then(Value::as_str);
    let has_other_data = entries().next().is_some() || item.object.get("binaryData").is_some();
    if class.is_none() && has_other_data && !entries().any(|(name, _)| is_overlay(name)) {
        return None;
    }
    let (mut overlays, mut problems) = (BTreeMap::new(), Vec::new());
    let mut problem = |name: &str, reason: String| problems.push(Text::from(format!("data.{name}: {reason}")));
    for (name, value) in entries() {
        if !is_overlay(name) {
            problem(name, format!("unsupported overlay, expected one of {}", OVERLAY_KEYS.join(", ")));
            continue;
        }
        let text = value.as_str().unwrap_or_default();
        match parse_value(text, &Limits::default()) {
            Ok(Value::Object(_) | Value::Null) => {}
            Ok(_) => problem(name, "expected an object".to_owned()),
            Err(error) => problem(name, error.to_string()),
        }
        overlays.insert(Text::from(name), text.into());
    }
    Some(Box::new(GatewayParameters {
        defaults_for_class: class.unwrap_or_default().into(),
        created: item.meta(findings).created,
        overlays,
        problems,
    }))
}
