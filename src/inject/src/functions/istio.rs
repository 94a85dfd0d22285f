//! The functions of Istio's injector.

use std::collections::BTreeMap;

use prost_reflect::DynamicMessage;
use serde_json::{Value as Json, json};

use sluice_template::functions::arguments::{Called, Table, dict, exactly, list, names, text, to_size};
use sluice_template::functions::{MAX_INDENT, parse_json, to_yaml};
use sluice_template::{Dict, Scope, Value, show};

pub(super) const FUNCTIONS: Table = &[
    ("annotation", annotation),
    ("appendMultusNetwork", append_multus_network),
    ("applicationPorts", |_, args| exactly::<1>(args).and_then(|[value]| ports(value, |name| name != PROXY))),
    ("directory", directory),
    ("env", env),
    ("excludeInboundPort", exclude_inbound_port),
    ("excludeInterfaces", same),
    ("formatDuration", format_duration),
    ("fromJSON", |_, args| {
        exactly::<1>(args).and_then(|[value]| Ok(parse_json(text(value)?).unwrap_or_else(|_| Value::text("{}"))))
    }),
    ("includeInboundPorts", |_, args| exactly::<1>(args).and_then(|[value]| ports(value, |_| true))),
    ("indent", indent),
    ("isset", isset),
    ("kubevirtInterfaces", same),
    ("mergeMaps", |_, args| Ok(Value::text_dict(merged(args)?))),
    ("omitNil", |_, args| exactly::<1>(args).map(|[value]| without_nil(value).unwrap_or(Value::Nil))),
    ("otelResourceAttributes", otel_resource_attributes),
    ("protoToJSON", proto_to_json),
    ("strdict", strdict),
    ("structToJSON", |_, args| {
        exactly::<1>(args).map(|[value]| match value {
            Value::Missing | Value::Nil => Value::text("{}"),
            other => Value::text(other.to_json().to_string()),
        })
    }),
    ("toJSON", |_, args| {
        exactly::<1>(args).map(|[value]| match value {
            Value::Missing | Value::Nil => Value::text("{}"),
            other => Value::text(other.to_json().to_string()),
        })
    }),
    ("toJsonMap", |_, args| Ok(Value::text(json!(merged(args)?).to_string()))),
    ("toLower", |_, args| exactly::<1>(args).and_then(|[value]| Ok(Value::text(text(value)?.to_lowercase())))),
    ("toYaml", |_, args| exactly::<1>(args).and_then(|[value]| Ok(Value::text(to_yaml(&value.to_json())?)))),
    ("valueOrDefault", value_or_default),
];

const PROXY: &str = "istio-proxy";

fn same(_: &Scope<'_>, args: &[Value]) -> Called {
    exactly::<1>(args).map(|[value]| value.clone())
}

/// `annotation META NAME DEFAULT`
fn annotation(_: &Scope<'_>, args: &[Value]) -> Called {
    let [meta, name, default] = exactly(args)?;
    let Value::Object(meta) = meta else {
        return Err(format!("wrong type for value; expected v1.ObjectMeta; got {}", meta.type_name()));
    };
    let annotations = meta.field("Annotations")?.unwrap_or(Value::Nil);
    let set = dict(&annotations)?.entries.get(text(name)?).cloned();
    Ok(Value::text(show(&set.unwrap_or_else(|| default.clone()))))
}

fn isset(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value, key] = exactly(args)?;
    Ok(Value::Bool(dict(value)?.entries.contains_key(text(key)?)))
}

fn value_or_default(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value, default] = exactly(args)?;
    let is_unset = value.is_nil() || matches!(value, Value::Text(text) if text.is_empty());
    Ok(if is_unset { default.clone() } else { value.clone() })
}

fn env(scope: &Scope<'_>, args: &[Value]) -> Called {
    let [name, default] = exactly(args)?;
    let value = scope.environment.get(text(name)?).filter(|value| !value.is_empty());
    Ok(Value::text(match value {
        Some(value) => value,
        None => text(default)?,
    }))
}

fn directory(_: &Scope<'_>, args: &[Value]) -> Called {
    let [path] = exactly(args)?;
    let path = text(path)?;
    Ok(Value::text(&path[..path.rfind('/').map_or(0, |index| index + 1)]))
}

/// Indents all lines but the first.
fn indent(_: &Scope<'_>, args: &[Value]) -> Called {
    let [spaces, source] = exactly(args)?;
    let pad = " ".repeat(to_size(spaces).min(MAX_INDENT));
    Ok(Value::text(text(source)?.replace('\n', &format!("\n{pad}"))))
}

/// Adds the status port to the inbound ports that are not captured.
fn exclude_inbound_port(_: &Scope<'_>, args: &[Value]) -> Called {
    let [port, excluded] = exactly(args)?;
    let port = show(port);
    let port = port.trim();
    let excluded = text(excluded)?;
    if port.is_empty() || port == "0" || excluded.split(',').any(|other| other == port) {
        return Ok(Value::text(excluded));
    }
    let mut ports: Vec<&str> = excluded.split(',').map(str::trim).filter(|port| !port.is_empty()).collect();
    ports.push(port);
    Ok(Value::text(ports.join(",")))
}

/// The TCP ports of the containers whose name `includes` accepts.
fn ports(containers: &Value, includes: fn(&str) -> bool) -> Called {
    let mut out = Vec::new();
    for container in list(containers)? {
        let container = container.to_json();
        if !includes(container["name"].as_str().unwrap_or_default()) {
            continue;
        }
        for port in container["ports"].as_array().into_iter().flatten() {
            if !matches!(port["protocol"].as_str(), Some("UDP" | "SCTP")) {
                out.push(port["containerPort"].as_i64().unwrap_or_default().to_string());
            }
        }
    }
    Ok(Value::text(out.join(",")))
}

/// Adds a network to the annotation of Multus, which is a list of names or a JSON array.
fn append_multus_network(_: &Scope<'_>, args: &[Value]) -> Called {
    let [existing, network] = exactly(args)?;
    let (existing, network) = (text(existing)?, text(network)?);
    if existing.is_empty() {
        return Ok(Value::text(network));
    }
    let Some(end) = existing.rfind(']') else {
        let known = existing.split(',').any(|other| other.trim() == network);
        return Ok(Value::text(if known { existing.to_owned() } else { format!("{existing}, {network}") }));
    };
    let Ok(Json::Array(networks)) = serde_json::from_str(existing) else { return Ok(Value::text(existing)) };
    let (namespace, name) = network.split_once('/').unwrap_or(("", network));
    let known = networks.iter().any(|other| {
        other["name"].as_str() == Some(name) && other["namespace"].as_str().unwrap_or_default() == namespace
    });
    if known {
        return Ok(Value::text(existing));
    }
    let added = match namespace {
        "" => format!(", {{\"name\": \"{name}\"}}"),
        namespace => format!(", {{\"name\": \"{name}\", \"namespace\": \"{namespace}\"}}"),
    };
    Ok(Value::text(format!("{}{added}{}", &existing[..end], &existing[end..])))
}

/// All maps together, the last one first.
fn merged(args: &[Value]) -> Result<BTreeMap<String, String>, String> {
    let mut out = BTreeMap::new();
    for value in args {
        for (key, value) in &dict(value)?.entries {
            out.insert(key.clone(), text(value)?.to_owned());
        }
    }
    Ok(out)
}

fn strdict(_: &Scope<'_>, args: &[Value]) -> Called {
    let names = names(args)?;
    let pairs = names.chunks(2).map(|pair| (pair[0].to_owned(), pair.get(1).copied().unwrap_or_default().to_owned()));
    Ok(Value::text_dict(pairs))
}

/// Without nulls, and without maps and lists that are empty once their nulls are removed.
fn without_nil(value: &Value) -> Option<Value> {
    match value {
        Value::Missing | Value::Nil => None,
        Value::Dict(dict) => {
            let kept: BTreeMap<String, Value> = dict
                .entries
                .iter()
                .filter_map(|(key, value)| without_nil(value).map(|value| (key.clone(), value)))
                .collect();
            (!kept.is_empty() || dict.entries.is_empty()).then(|| Value::dict_of(dict.of_texts, kept))
        }
        Value::List(items) => {
            let kept: Vec<Value> = items.iter().filter_map(without_nil).collect();
            (!kept.is_empty() || items.is_empty()).then(|| Value::list(kept))
        }
        other => Some(other.clone()),
    }
}

/// A protobuf duration in Go's form, such as `1m30s`.
fn format_duration(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value] = exactly(args)?;
    let Value::Object(object) = value else {
        return Err(format!("wrong type for value; expected *durationpb.Duration; got {}", value.type_name()));
    };
    let number = |name: &str| match object.field(name) {
        Ok(Some(Value::Integer(number))) => number,
        _ => 0,
    };
    Ok(Value::text(go_duration(i128::from(number("Seconds")) * 1_000_000_000 + i128::from(number("Nanos")))))
}

fn go_duration(nanoseconds: i128) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let total = nanoseconds.unsigned_abs();
    let decimal = |unit: u128, digits: usize| {
        let fraction = format!("{:0digits$}", total % unit);
        let fraction = fraction.trim_end_matches('0');
        let whole = total / unit;
        if fraction.is_empty() { whole.to_string() } else { format!("{whole}.{fraction}") }
    };
    match total {
        0 => "0s".to_owned(),
        1..1_000 => format!("{sign}{total}ns"),
        1_000..1_000_000 => format!("{sign}{}µs", decimal(1_000, 3)),
        1_000_000..1_000_000_000 => format!("{sign}{}ms", decimal(1_000_000, 6)),
        _ => {
            let (hours, minutes) = (total / 3_600_000_000_000, total / 60_000_000_000 % 60);
            let rest = total % 60_000_000_000;
            let fraction = format!("{:09}", rest % 1_000_000_000);
            let fraction = fraction.trim_end_matches('0');
            let dot = if fraction.is_empty() { "" } else { "." };
            let seconds = format!("{}{dot}{fraction}s", rest / 1_000_000_000);
            match (hours, minutes) {
                (0, 0) => format!("{sign}{seconds}"),
                (0, minutes) => format!("{sign}{minutes}m{seconds}"),
                (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

/// The JSON of a message. Of a ProxyConfig, fields with default values are left out.
fn proto_to_json(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value] = exactly(args)?;
    let Value::Object(object) = value else { return Ok(Value::text("{}")) };
    let json = match object.as_any().and_then(|any| any.downcast_ref::<DynamicMessage>()) {
        Some(message) => crate::proxy_config::without_defaults(message),
        None => json!({}),
    };
    Ok(Value::text(json.to_string()))
}

/// `otelResourceAttributes MESH ANNOTATIONS LABELS NAMESPACE CONTAINERS`: the resource attributes of OpenTelemetry if a
/// tracing provider asks for them.
fn otel_resource_attributes(_: &Scope<'_>, args: &[Value]) -> Called {
    let [mesh, annotations, labels, namespace, containers] = exactly(args)?;
    let mesh = mesh.to_json();
    let mut providers = mesh["extensionProviders"].as_array().into_iter().flatten();
    let enriches = |provider: &Json| {
        provider["opentelemetry"]["serviceAttributeEnrichment"].as_str() == Some("OTEL_SEMANTIC_CONVENTIONS")
    };
    if !providers.any(enriches) {
        return Ok(Value::text(""));
    }
    let (annotations, labels) = (dict(annotations)?, dict(labels)?);
    let set = |dict: &Dict, name: &str| match dict.entries.get(name) {
        Some(Value::Text(text)) if !text.is_empty() => Some(text.to_string()),
        _ => None,
    };
    let annotated = |name: &str| set(&annotations, &format!("resource.opentelemetry.io/{name}"));
    let (namespace, containers) = (text(namespace)?, list(containers)?);
    let first = containers.first().map(Value::to_json);
    let field = |name: &str| first.as_ref().and_then(|first| first[name].as_str()).unwrap_or_default();
    let attributes = [
        ("service.namespace", annotated("service.namespace").or((!namespace.is_empty()).then(|| namespace.to_owned()))),
        (
            "service.version",
            annotated("service.version")
                .or_else(|| set(&labels, "app.kubernetes.io/version"))
                .or_else(|| (containers.len() == 1).then(|| image_version(field("image"))).flatten()),
        ),
        (
            "service.instance.id",
            annotated("service.instance.id")
                .or_else(|| first.is_some().then(|| format!("{namespace}.$(POD_NAME).{}", field("name")))),
        ),
    ];
    let set = attributes.into_iter().filter_map(|(name, value)| value.map(|value| format!("{name}={value}")));
    Ok(Value::text(set.collect::<Vec<_>>().join(",")))
}

/// Tag and digest of an image.
fn image_version(image: &str) -> Option<String> {
    let (name, digest) = image.split_once('@').unwrap_or((image, ""));
    let last = name.rsplit('/').next().unwrap_or_default();
    let tag = last.rsplit_once(':').map_or("", |(_, tag)| tag);
    match (tag, digest) {
        ("", "") => None,
        ("", digest) => Some(digest.to_owned()),
        (tag, "") => Some(tag.to_owned()),
        (tag, digest) => Some(format!("{tag}@{digest}")),
    }
}
