//! TrafficExtension and WasmPlugin (T05).

use std::collections::BTreeSet;

use serde_json::Value;
use sluice_model::{
    CredentialKind, ExtensionCode, ExtensionPhase, FailStrategy, Object, PullPolicy, Text, TrafficExtension,
    TrafficSelector, WasmConfig, WasmSource, WorkloadMode,
};

use crate::attachment::attachment;
use crate::{Fields, Findings, Item};

/// Prefix that separates the names of WasmPlugins from those of TrafficExtensions. It is not valid in object names.
const PLUGIN_MARK: &str = "~istio-translated-wasmplugin";
/// Maximum size of a Lua script.
const MAX_SCRIPT_BYTES: usize = 65536;
/// Maximum length of the name of a plugin or variable.
const MAX_NAME_BYTES: usize = 256;
/// Maximum length of the name of a Secret.
const MAX_SECRET_NAME_BYTES: usize = 253;

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let code = match (fields.object("wasm"), fields.object("lua")) {
        (Some(wasm), None) => wasm_config(item, &wasm).map(Box::new).map(ExtensionCode::Wasm),
        (None, Some(lua)) => Some(ExtensionCode::Lua(script(&lua))),
        _ => {
            fields.reject("", "exactly one of `wasm` and `lua` is required");
            None
        }
    };
    let extension = extension(item, &fields, code, "", findings);
    drop(fields);
    extension.filter(|_| !findings.has_errors()).map(Box::new).map(Object::TrafficExtension)
}

/// A WasmPlugin has the fields of a TrafficExtension and those of its `wasm` in one object.
pub(crate) fn parse_wasm_plugin(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let code = wasm_config(item, &fields).map(Box::new).map(ExtensionCode::Wasm);
    let extension = extension(item, &fields, code, PLUGIN_MARK, findings);
    drop(fields);
    extension.filter(|_| !findings.has_errors()).map(Box::new).map(Object::WasmPlugin)
}

fn extension(
    item: &Item<'_>,
    fields: &Fields<'_>,
    code: Option<ExtensionCode>,
    mark: &str,
    findings: &Findings,
) -> Option<TrafficExtension> {
    let phases = [
        (if mark.is_empty() { "UNSPECIFIED" } else { "UNSPECIFIED_PHASE" }, ExtensionPhase::Unspecified),
        ("AUTHN", ExtensionPhase::Authn),
        ("AUTHZ", ExtensionPhase::Authz),
        ("STATS", ExtensionPhase::Stats),
    ];
    let meta = item.meta(findings);
    let attachment = attachment(fields);
    let phase = fields.choice("phase", &phases).unwrap_or_default();
    let priority = fields.opt_integer("priority");
    let matches = fields.list("match", traffic_selector);
    Some(TrafficExtension {
        namespace: meta.namespace,
        name: format!("{}{mark}", meta.name).into(),
        created: meta.created,
        attachment,
        phase,
        priority,
        matches,
        code: code?,
    })
}

fn traffic_selector(fields: &Fields<'_>) -> TrafficSelector {
    let modes = [
        ("UNDEFINED", WorkloadMode::ClientAndServer),
        ("CLIENT", WorkloadMode::Client),
        ("SERVER", WorkloadMode::Server),
        ("CLIENT_AND_SERVER", WorkloadMode::ClientAndServer),
    ];
    let port = |port: &Fields<'_>| {
        let number = port.integer("number");
        if !(1..=65535).contains(&number) {
            port.refuse("number", format!("expected a port from 1 to 65535, found {number}"));
        }
        number
    };
    TrafficSelector { mode: fields.choice("mode", &modes).unwrap_or_default(), ports: fields.list("ports", port) }
}

fn script(fields: &Fields<'_>) -> Text {
    let code = fields.text("inlineCode");
    if code.is_empty() {
        fields.reject("inlineCode", "the script is required");
    }
    if code.len() > MAX_SCRIPT_BYTES {
        fields.reject("inlineCode", format!("a script must have at most {MAX_SCRIPT_BYTES} bytes"));
    }
    code
}

fn wasm_config(item: &Item<'_>, fields: &Fields<'_>) -> Option<WasmConfig> {
    let policies = [
        ("UNSPECIFIED_POLICY", None),
        ("IfNotPresent", Some(PullPolicy::IfNotPresent)),
        ("Always", Some(PullPolicy::Always)),
    ];
    let strategies =
        [("FAIL_CLOSE", FailStrategy::Close), ("FAIL_OPEN", FailStrategy::Open), ("FAIL_RELOAD", FailStrategy::Reload)];
    let types = [("UNSPECIFIED_PLUGIN_TYPE", false), ("HTTP", false), ("NETWORK", true)];
    // Signatures of modules are not verified, as in Istio.
    fields.has("verificationKey");
    let url = fields.text("url");
    let source = source(&url).map_err(|error| fields.reject("url", error.to_string())).ok();
    let sha256 = fields.text("sha256");
    let hexadecimal = sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !sha256.is_empty() && (sha256.len() != 64 || !hexadecimal) {
        fields.refuse("sha256", "expected 64 hexadecimal digits 0-9 and a-f");
    }
    let secret = fields.text("imagePullSecret");
    if secret.len() > MAX_SECRET_NAME_BYTES {
        fields
            .refuse("imagePullSecret", format!("the name of a Secret must have at most {MAX_SECRET_NAME_BYTES} bytes"));
    }
    let plugin_name = fields.text("pluginName");
    if plugin_name.len() > MAX_NAME_BYTES {
        fields.refuse("pluginName", format!("a name must have at most {MAX_NAME_BYTES} bytes"));
    }
    let plugin_config = fields.object("pluginConfig").map(|config| config.ignore_rest());
    let plugin_config = plugin_config.and_then(|()| fields.value("pluginConfig")).filter(|value| **value != empty());
    let version = item.object["metadata"]["resourceVersion"].as_str();
    Some(WasmConfig {
        sha256,
        pull_policy: fields.choice("imagePullPolicy", &policies).flatten(),
        pull_secret: pull_secret(&secret),
        plugin_config: plugin_config.map(|value| canonical_json(value).into()).unwrap_or_default(),
        plugin_name,
        fail_strategy: fields.choice("failStrategy", &strategies).unwrap_or_default(),
        env: fields.read("vmConfig", environment).unwrap_or_default(),
        network: fields.choice("type", &types).unwrap_or_default(),
        // An object from a file has no resource version.
        resource_version: version.filter(|version| !version.is_empty()).unwrap_or("1").into(),
        source: source?,
    })
}

fn empty() -> Value {
    Value::Object(serde_json::Map::new())
}

fn environment(fields: &Fields<'_>) -> Vec<(Text, Option<Text>)> {
    let mut names = BTreeSet::new();
    let variable = |variable: &Fields<'_>| {
        let name = variable.text("name");
        if name.is_empty() {
            variable.refuse("name", "the name of a variable is required");
        }
        if name.len() > MAX_NAME_BYTES {
            variable.refuse("name", format!("a name must have at most {MAX_NAME_BYTES} bytes"));
        }
        if !names.insert(name.clone()) {
            variable.refuse("name", format!("variable `{name}` is listed twice"));
        }
        let host = variable.choice("valueFrom", &[("INLINE", false), ("HOST", true)]).unwrap_or_default();
        let value = variable.text("value");
        if host && !value.is_empty() {
            variable.refuse("value", "`value` requires `valueFrom: INLINE`");
        }
        (name, (!host).then_some(value))
    };
    fields.objects("env").iter().map(variable).collect()
}

/// The name of a Secret, written as `name` or `namespace/name`, with an optional prefix `kubernetes://`. The namespace is
/// ignored: the Secret is in the namespace of the extension.
fn pull_secret(text: &str) -> Text {
    let name = text.strip_prefix(CredentialKind::Secret.prefix()).unwrap_or(text);
    let name = name.rsplit_once('/').map_or(name, |(_, name)| name);
    name.into()
}

/// Why the URL of a module is invalid; displayed as a lower-case fragment.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
enum ModuleUrlError {
    #[error("the URL of the module is required")]
    Empty,
    #[error("a URL must not contain control characters")]
    ControlCharacter,
    #[error("a single `%` is invalid: write a percent sign as `%25`")]
    PercentSign,
    #[error("`{0}` is ambiguous: a URL with a port requires a scheme such as `oci://`")]
    AmbiguousPort(String),
    #[error("expected scheme `oci`, `http`, `https` or `file`, found `{0}`")]
    Scheme(String),
}

/// The source of a module. A URL without a scheme is an OCI image.
fn source(url: &str) -> Result<WasmSource, ModuleUrlError> {
    if url.is_empty() {
        return Err(ModuleUrlError::Empty);
    }
    if url.contains(|c: char| c.is_ascii_control()) {
        return Err(ModuleUrlError::ControlCharacter);
    }
    let is_escape =
        |rest: &str| rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    if url.split('%').skip(1).any(|rest| !is_escape(rest)) {
        return Err(ModuleUrlError::PercentSign);
    }
    let scheme = url.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| {
        let mut bytes = scheme.bytes();
        bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic())
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    });
    let Some(scheme) = scheme else {
        let first = url.split('/').next().unwrap_or_default();
        // `host:port/image` would be ambiguous: `host` could be a scheme.
        return if first.contains(':') {
            Err(ModuleUrlError::AmbiguousPort(first.to_owned()))
        } else {
            Ok(WasmSource::Remote(format!("oci://{url}").into()))
        };
    };
    let rest = &url[scheme.len()..];
    match scheme.to_ascii_lowercase().as_str() {
        "file" => Ok(WasmSource::File(url.strip_prefix("file://").unwrap_or(url).into())),
        scheme @ ("http" | "https" | "oci") => Ok(WasmSource::Remote(format!("{scheme}{rest}").into())),
        scheme => Err(ModuleUrlError::Scheme(scheme.to_owned())),
    }
}

/// JSON in the form of protobuf's `Struct`: sorted keys, and numbers in their shortest form as floats.
fn canonical_json(value: &Value) -> String {
    match value {
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), float),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(canonical_json).collect();
            format!("[{}]", values.join(","))
        }
        Value::Object(fields) => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            let field =
                |(name, value): (&String, &Value)| format!("{}:{}", Value::from(name.as_str()), canonical_json(value));
            let fields: Vec<String> = fields.into_iter().map(field).collect();
            format!("{{{}}}", fields.join(","))
        }
        other => other.to_string(),
    }
}

fn float(number: f64) -> String {
    let size = number.abs();
    if number == 0.0 || (1e-6..1e21).contains(&size) {
        return format!("{number}");
    }
    let text = format!("{number:e}");
    if text.contains("e-") { text } else { text.replace('e', "e+") }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sluice_model::{ExtensionCode, ExtensionPhase, Object, TrafficExtension, WasmSource};

    use super::{canonical_json, source};
    use crate::parse_object;

    /// The extension, or the field paths of the findings.
    fn parse(kind: &str, spec: &Value) -> Result<TrafficExtension, String> {
        let object = json!({
            "apiVersion": "extensions.istio.io/v1alpha1",
            "kind": kind,
            "metadata": {"namespace": "lab", "name": "x", "resourceVersion": "7"},
            "spec": spec,
        });
        let parsed = parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("an object");
        match parsed.object {
            Some(Object::TrafficExtension(extension) | Object::WasmPlugin(extension)) if parsed.rejects.is_empty() => {
                Ok(*extension)
            }
            _ => Err(parsed.rejects.iter().map(|reject| reject.field_path.to_string()).collect::<Vec<_>>().join(" ")),
        }
    }

    #[test]
    fn wasm_plugin_becomes_a_traffic_extension_with_a_prefixed_name() {
        let wasm = json!({"url": "r.test/x", "vmConfig": {"env": [{"name": "A", "value": "b"}, {"name": "H", "valueFrom": "HOST"}]},
            "imagePullSecret": "kubernetes://other/cred", "pluginConfig": {"b": 1.0, "a": [true]}});
        let mut plugin = wasm.clone();
        plugin["phase"] = json!("AUTHN");
        plugin["priority"] = json!(3);
        let plugin = parse("WasmPlugin", &plugin).unwrap();
        let extension = parse("TrafficExtension", &json!({"wasm": wasm, "phase": "AUTHN", "priority": 3})).unwrap();
        assert_eq!(plugin.filter_name(), "extensions.istio.io/trafficextension/lab.x~istio-translated-wasmplugin");
        assert_eq!((plugin.phase, plugin.priority), (ExtensionPhase::Authn, Some(3)));
        assert_eq!(TrafficExtension { name: "x".into(), ..plugin.clone() }, extension);
        let ExtensionCode::Wasm(wasm) = plugin.code else { panic!("wasm") };
        assert_eq!((wasm.pull_secret.as_str(), wasm.resource_version.as_str()), ("cred", "7"));
        assert_eq!(wasm.plugin_config, "{\"a\":[true],\"b\":1}");
        assert_eq!(wasm.env, [("A".into(), Some("b".into())), ("H".into(), None)]);
    }

    #[test]
    fn invalid_fields_are_reported_with_their_path() {
        let path = |spec: Value| parse("WasmPlugin", &spec).expect_err("refused");
        let with = |field: &str, value: Value| path(json!({"url": "oci://r.test/x", field: value}));
        assert_eq!(path(json!({"phase": "AUTHN"})), "spec.url");
        assert_eq!(path(json!({"url": "ftp://r.test/x"})), "spec.url");
        assert_eq!(with("sha256", json!("abcd")), "spec.sha256");
        assert_eq!(with("sha256", json!("G".repeat(64))), "spec.sha256");
        assert_eq!(with("imagePullSecret", json!("s".repeat(254))), "spec.imagePullSecret");
        assert_eq!(with("pluginName", json!("s".repeat(257))), "spec.pluginName");
        let env = |env: Value| with("vmConfig", json!({"env": env}));
        assert_eq!(env(json!([{"name": "A", "value": "1"}, {"name": "A"}])), "spec.vmConfig.env[1].name");
        assert_eq!(env(json!([{"name": "A", "valueFrom": "HOST", "value": "x"}])), "spec.vmConfig.env[0].value");
        assert_eq!(env(json!([{"value": "x"}])), "spec.vmConfig.env[0].name");
        assert_eq!(with("match", json!([{"ports": [{"number": 0}]}])), "spec.match[0].ports[0].number");
        assert_eq!(with("match", json!([{"ports": [{"number": 65536}]}])), "spec.match[0].ports[0].number");

        let path = |spec: Value| parse("TrafficExtension", &spec).expect_err("refused");
        assert_eq!(path(json!({"phase": "STATS"})), "spec");
        assert!(path(json!({"lua": {"inlineCode": "x = 1"}, "wasm": {"url": "oci://r.test/x"}})).contains("spec"));
        assert_eq!(path(json!({"lua": {"inlineCode": ""}})), "spec.lua.inlineCode");
        assert_eq!(path(json!({"lua": {"inlineCode": "x".repeat(65537)}})), "spec.lua.inlineCode");
        assert_eq!(path(json!({"wasm": {"url": ""}})), "spec.wasm.url");
    }

    #[test]
    fn url_without_a_scheme_is_an_oci_image() {
        let remote = |text: &str| Ok(WasmSource::Remote(text.into()));
        assert_eq!(source("r.test/x:1"), remote("oci://r.test/x:1"));
        assert_eq!(source("HTTPS://r.test/x"), remote("https://r.test/x"));
        assert_eq!(source("file:///opt/x.wasm"), Ok(WasmSource::File("/opt/x.wasm".into())));
        assert!(source("10.0.0.1:5000/x").is_err());
        assert!(source("registry.test:5000/x").is_err());
    }

    #[test]
    fn numbers_have_the_form_of_protobuf_json() {
        let value = json!([1, 2.0, 1.5, -0.25, 1e21, 1e-7, 123_456_789_012_i64, "a\"\u{1}", null]);
        let expected = "[1,2,1.5,-0.25,1e+21,1e-7,123456789012,\"a\\\"\\u0001\",null]";
        assert_eq!(canonical_json(&value), expected);
    }
}
