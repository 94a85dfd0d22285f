//! The validation rules of Envoy's messages. A proxy rejects a resource that violates one.
//!
//! `envoy_rules.txt` has the `validate.rules` of the `.proto` files of Envoy's API that the descriptors are built from, one
//! rule on each line: message, field, rule, bound. Durations are in nanoseconds. `RemoteDataSource.sha256` is omitted: the
//! agent fetches modules without a hash, and Envoy gets a local file.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use prost_reflect::{DynamicMessage, ReflectMessage, Value};

/// Rules by message and field.
static RULES: LazyLock<BTreeMap<&'static str, Vec<Rule>>> = LazyLock::new(|| {
    let mut rules: BTreeMap<&str, Vec<Rule>> = BTreeMap::new();
    for line in include_str!("envoy_rules.txt").lines() {
        let mut words = line.split(' ');
        let (Some(message), Some(field), Some(word)) = (words.next(), words.next(), words.next()) else { continue };
        let each = word == "each";
        let word = if each { words.next().unwrap_or_default() } else { word };
        let bound = words.next().and_then(|bound| bound.parse().ok()).unwrap_or_default();
        rules.entry(message).or_default().push(Rule { field, each, word, bound });
    }
    rules
});

struct Rule {
    field: &'static str,
    /// The rule applies to every element of the field.
    each: bool,
    word: &'static str,
    bound: f64,
}

/// Adds the rules that a message violates, without those of nested messages.
pub(crate) fn add_violations(message: &DynamicMessage, out: &mut Vec<String>) {
    let descriptor = message.descriptor();
    for rule in RULES.get(descriptor.full_name()).into_iter().flatten() {
        if rule.word == "oneof" {
            let oneof = descriptor.oneofs().find(|oneof| oneof.name() == rule.field);
            if oneof.is_some_and(|oneof| !oneof.fields().any(|field| message.has_field(&field))) {
                out.push(format!("{}.{}: no field of the oneof is set", descriptor.full_name(), rule.field));
            }
            continue;
        }
        let Some(field) = descriptor.get_field_by_name(rule.field) else { continue };
        let is_set = message.has_field(&field);
        // An absent field with presence violates only `required`. Fields of a oneof may be absent.
        let may_be_absent = rule.word != "required" || field.containing_oneof().is_some();
        if !is_set && field.supports_presence() && may_be_absent {
            continue;
        }
        let value = message.get_field(&field);
        let holds = match (&*value, rule.each) {
            (Value::List(values), true) => values.iter().all(|value| holds(rule, value, true)),
            (value, _) => holds(rule, value, is_set),
        };
        if !holds {
            out.push(format!("{}.{}: {} {}", descriptor.full_name(), rule.field, rule.word, rule.bound));
        }
    }
}

fn holds(rule: &Rule, value: &Value, is_set: bool) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "bounds are small")]
    let length = |length: usize| length as f64;
    let text = value.as_str();
    let size = match value {
        Value::String(text) => length(text.len()),
        Value::Bytes(bytes) => length(bytes.len()),
        Value::List(values) => length(values.len()),
        _ => 0.0,
    };
    match rule.word {
        "required" => is_set,
        "min_len" | "min_items" => size >= rule.bound,
        "max_len" | "max_items" => size <= rule.bound,
        "header" => text.is_none_or(|text| !text.contains(['\0', '\r', '\n'])),
        word => number(value).is_none_or(|number| match word {
            "gt" => number > rule.bound,
            "gte" => number >= rule.bound,
            "lt" => number < rule.bound,
            "lte" => number <= rule.bound,
            _ => true,
        }),
    }
}

/// The number in a value, in a wrapper message, or in a duration as nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "bounds are small")]
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::U32(n) => Some(f64::from(*n)),
        Value::I32(n) => Some(f64::from(*n)),
        Value::U64(n) => Some(*n as f64),
        Value::I64(n) => Some(*n as f64),
        Value::F32(n) => Some(f64::from(*n)),
        Value::F64(n) => Some(*n),
        Value::Message(message) => {
            let field = |name: &str| message.get_field_by_name(name).and_then(|value| number(&value));
            match message.descriptor().full_name() {
                "google.protobuf.Duration" => Some(field("seconds")? * 1e9 + field("nanos")?),
                name if name.starts_with("google.protobuf.") => field("value"),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use sluice_proto::envoy::config::route::v3::VirtualHost;
    use sluice_proto::pool;

    use super::*;

    fn rules<M: Message + prost::Name>(message: &M) -> Vec<String> {
        let descriptor = pool().get_message_by_name(&M::full_name()).expect("a message");
        let message = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).expect("decodes");
        let mut out = Vec::new();
        add_violations(&message, &mut out);
        out
    }

    #[test]
    fn rules_are_read_and_violations_reported() {
        assert!(RULES.len() > 200, "{} messages", RULES.len());
        for (message, rules) in RULES.iter() {
            for rule in rules {
                let words = "oneof required min_len max_len min_items max_items header gt gte lt lte";
                assert!(words.split(' ').any(|word| word == rule.word), "{message}.{}: {}", rule.field, rule.word);
            }
        }
        let good = VirtualHost { name: "a".into(), domains: vec!["*".into()], ..VirtualHost::default() };
        assert!(rules(&good).is_empty());
        let bad = VirtualHost { name: String::new(), domains: vec!["a\nb".into()], ..good };
        let expected = [
            "envoy.config.route.v3.VirtualHost.domains: header 0",
            "envoy.config.route.v3.VirtualHost.name: min_len 1",
        ];
        assert_eq!(rules(&bad), expected);
    }
}
