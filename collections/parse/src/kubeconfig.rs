//! Untrusted kubeconfigs of remote clusters (S15).
//!
//! The author of such a Secret must not be able to run programs on this machine or to make it send local files. Only known
//! fields are kept, and messages do not quote the text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value, json};

use crate::encoding::decode_base64_lines;
use crate::yaml::{Limits, parse_documents};

/// Fields of a user that are kept.
const USER: [&str; 14] = [
    "as",
    "as-groups",
    "as-uid",
    "as-user-extra",
    "auth-provider",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "exec",
    "password",
    "token",
    "tokenFile",
    "username",
];
/// Fields of a user that make a client run programs or read files, each with the option that allows it.
const UNSAFE: [(&str, &str); 4] = [
    ("client-certificate", "clientCertificate"),
    ("client-key", "clientKey"),
    ("exec", "exec"),
    ("tokenFile", "tokenFile"),
];
/// Fields of a cluster that are kept.
const CLUSTER: [&str; 6] = [
    "certificate-authority",
    "certificate-authority-data",
    "disable-compression",
    "insecure-skip-tls-verify",
    "server",
    "tls-server-name",
];
/// Fields of users and clusters whose value is base64.
const ENCODED: [&str; 3] = ["certificate-authority-data", "client-certificate-data", "client-key-data"];

/// A kubeconfig that is reduced to its current context and that context's cluster and user.
#[derive(Clone, Eq, PartialEq)]
pub struct Kubeconfig(Value);

impl Kubeconfig {
    /// The kubeconfig as JSON, for a Kubernetes client.
    #[must_use]
    pub fn into_value(self) -> Value {
        self.0
    }
}

impl fmt::Debug for Kubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// An invalid part of a kubeconfig.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KubeconfigFault {
    /// Field path in the kubeconfig; empty for the whole document.
    pub path: String,
    /// What is wrong, a lower-case fragment that quotes nothing of the kubeconfig.
    pub reason: String,
}

/// Parses a kubeconfig. A user that runs programs or reads files is refused, in every context, unless `allowed` lists the
/// option (`PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS`).
///
/// # Errors
/// All invalid parts.
pub fn parse_kubeconfig(text: &[u8], allowed: &BTreeSet<String>) -> Result<Kubeconfig, Vec<KubeconfigFault>> {
    let mut faults = Faults::default();
    let read = document(text).map_err(|reason| vec![KubeconfigFault { path: String::new(), reason }])?;
    let read = faults.read(&read, allowed);
    match read {
        Some(value) if faults.listed.is_empty() => Ok(Kubeconfig(value)),
        _ => Err(faults.into_vec()),
    }
}

/// The id of the cluster of a kubeconfig in a file: the cluster of the current context, else that of the first context, else the
/// first cluster, by name.
///
/// # Errors
/// The reason why there is none, a lower-case fragment that quotes nothing of the kubeconfig.
pub fn kubeconfig_cluster(content: &[u8]) -> Result<String, String> {
    let fields = document(content)?;
    let entries = |list: &str| fields.get(list).and_then(Value::as_array).into_iter().flatten();
    let name_of = |entry: &Value| entry.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let contexts = entries("contexts").filter_map(|entry| {
        let cluster = text(entry.get("context")?.as_object()?, "cluster")?;
        Some((name_of(entry), cluster.to_owned()))
    });
    let contexts: BTreeMap<String, String> = contexts.collect();
    let current = text(&fields, "current-context").and_then(|current| contexts.get(current));
    let of_context = current.or_else(|| contexts.values().next()).cloned();
    let first_cluster = || entries("clusters").map(name_of).filter(|name| !name.is_empty()).min();
    of_context.or_else(first_cluster).ok_or_else(|| "the kubeconfig names no cluster".to_owned())
}

/// The single document of the text.
fn document(text: &[u8]) -> Result<Map<String, Value>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "expected UTF-8 text".to_owned())?;
    let limits = Limits { document_bytes: 1 << 20, ..Limits::default() };
    let mut documents = parse_documents(text, &limits);
    match (documents.pop(), documents.is_empty()) {
        (None, _) => Err("the kubeconfig is empty".to_owned()),
        (Some(Ok(document)), true) => match document.value {
            Value::Object(fields) => Ok(fields),
            _ => Err("expected a kubeconfig: a YAML mapping".to_owned()),
        },
        // The message of the parser may quote the line.
        (Some(Err(error)), true) => Err(format!("invalid YAML in line {}", error.line)),
        (Some(_), false) => Err("expected one YAML document, found more".to_owned()),
    }
}

/// Maximum number of faults that are listed. One more says how many are left out.
const MAX_FAULTS: usize = 100;

#[derive(Default)]
struct Faults {
    listed: Vec<KubeconfigFault>,
    omitted: usize,
}

impl Faults {
    fn add(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        if self.listed.len() < MAX_FAULTS {
            self.listed.push(KubeconfigFault { path: path.into(), reason: reason.into() });
        } else {
            self.omitted += 1;
        }
    }

    fn into_vec(self) -> Vec<KubeconfigFault> {
        let Self { mut listed, omitted } = self;
        if omitted > 0 {
            let reason = format!("{omitted} more errors are not listed: at most {MAX_FAULTS} are");
            listed.push(KubeconfigFault { path: String::new(), reason });
        }
        listed
    }

    fn read(&mut self, fields: &Map<String, Value>, allowed: &BTreeSet<String>) -> Option<Value> {
        let users = self.named(fields, "users", "user");
        for (at, _, user) in &users {
            self.check_user(&format!("users[{at}].user"), user, allowed);
        }
        let Some(current) = text(fields, "current-context") else {
            self.add("current-context", "this field is required: it selects the cluster");
            return None;
        };
        let contexts = self.named(fields, "contexts", "context");
        let Some((at, _, context)) = contexts.into_iter().find(|(_, name, _)| *name == current) else {
            self.add("current-context", "no entry of `contexts` has this name");
            return None;
        };
        let clusters = self.named(fields, "clusters", "cluster");
        let wanted = text(&context, "cluster");
        let Some((which, _, cluster)) = clusters.into_iter().find(|(_, name, _)| Some(*name) == wanted) else {
            self.add(format!("contexts[{at}].context.cluster"), "no entry of `clusters` has this name");
            return None;
        };
        self.check_cluster(&format!("clusters[{which}].cluster"), &cluster);
        let user = match text(&context, "user") {
            None => Map::new(),
            Some(wanted) => match users.into_iter().find(|(_, name, _)| *name == wanted) {
                Some((_, _, user)) => user,
                None => {
                    self.add(format!("contexts[{at}].context.user"), "no entry of `users` has this name");
                    return None;
                }
            },
        };
        Some(json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": kept(&cluster, &CLUSTER)}],
            "users": [{"name": "it", "user": kept(&user, &USER)}],
        }))
    }

    /// The named entries of a list: index, name and content.
    fn named<'f>(
        &mut self,
        fields: &'f Map<String, Value>,
        list: &str,
        content: &str,
    ) -> Vec<(usize, &'f str, Map<String, Value>)> {
        let entries = match fields.get(list) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(entries)) => entries,
            Some(_) => {
                self.add(list, "expected a list");
                return Vec::new();
            }
        };
        let mut named = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            match (entry.get("name").and_then(Value::as_str), entry.get(content)) {
                (Some(name), Some(Value::Object(fields))) => named.push((at, name, fields.clone())),
                (Some(name), None | Some(Value::Null)) => named.push((at, name, Map::new())),
                (Some(_), Some(_)) => self.add(format!("{list}[{at}].{content}"), "expected an object"),
                (None, _) => self.add(format!("{list}[{at}].name"), "this field is required"),
            }
        }
        named
    }

    fn check_cluster(&mut self, path: &str, cluster: &Map<String, Value>) {
        match text(cluster, "server") {
            None => self.add(format!("{path}.server"), "this field is required: the URL of the API server"),
            Some(server) => {
                let rest = server.strip_prefix("https://").or_else(|| server.strip_prefix("http://"));
                if rest.is_none_or(str::is_empty) {
                    self.add(format!("{path}.server"), "expected a URL that begins with https:// or http://");
                }
            }
        }
        if text(cluster, "proxy-url").is_some() {
            self.add(format!("{path}.proxy-url"), "not supported: API servers are reached without a proxy");
        }
        let has_roots =
            ["certificate-authority", "certificate-authority-data"].map(|name| text(cluster, name).is_some());
        if has_roots == [true, true] {
            self.add(
                format!("{path}.certificate-authority"),
                "`certificate-authority` and `certificate-authority-data` are mutually exclusive",
            );
        }
        if has_roots.contains(&true) && cluster.get("insecure-skip-tls-verify") == Some(&Value::Bool(true)) {
            self.add(
                format!("{path}.insecure-skip-tls-verify"),
                "`insecure-skip-tls-verify` and a certificate authority are mutually exclusive",
            );
        }
        self.check_types(path, cluster, &CLUSTER);
    }

    fn check_user(&mut self, path: &str, user: &Map<String, Value>, allowed: &BTreeSet<String>) {
        let refuse = |option: &str| {
            format!("not allowed: PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS does not list {option}")
        };
        for (field, option) in UNSAFE {
            let is_there = user.get(field).is_some_and(|value| !value.is_null() && value.as_str() != Some(""));
            if is_there && !allowed.contains(option) {
                self.add(format!("{path}.{field}"), refuse(option));
            }
        }
        if let Some(provider) = user.get("auth-provider").filter(|provider| !provider.is_null()) {
            match provider.get("name").and_then(Value::as_str) {
                Some("oidc") => self.add(format!("{path}.auth-provider"), "OIDC is not supported: use a token"),
                Some(name) if allowed.contains(name) => {}
                _ => self.add(format!("{path}.auth-provider"), refuse("its name")),
            }
        }
        self.check_types(path, user, &USER);
    }

    /// Reports fields with a value that a client cannot use.
    fn check_types(&mut self, path: &str, fields: &Map<String, Value>, known: &[&str]) {
        for (name, value) in fields.iter().filter(|(name, value)| known.contains(&name.as_str()) && !value.is_null()) {
            let is_text = |value: &Value| value.is_string();
            let are_texts = |value: &Value| value.as_array().is_some_and(|list| list.iter().all(is_text));
            let fits = match name.as_str() {
                "insecure-skip-tls-verify" | "disable-compression" => value.is_boolean(),
                "auth-provider" | "exec" => value.is_object(),
                "as-groups" => are_texts(value),
                "as-user-extra" => value.as_object().is_some_and(|extra| extra.values().all(are_texts)),
                _ => value.is_string(),
            };
            if !fits {
                self.add(format!("{path}.{name}"), "the value has the wrong type");
            }
            if ENCODED.contains(&name.as_str())
                && value.as_str().is_some_and(|text| decode_base64_lines(text).is_none())
            {
                self.add(format!("{path}.{name}"), "expected base64");
            }
        }
    }
}

/// A string field that is present and not empty.
fn text<'f>(fields: &'f Map<String, Value>, name: &str) -> Option<&'f str> {
    fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn kept(fields: &Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    let fields = fields.iter().filter(|(name, value)| names.contains(&name.as_str()) && !value.is_null());
    fields.filter(|(_, value)| value.as_str() != Some("")).map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_is_that_of_the_current_context_or_the_first_by_name() {
        let id = |text: &str| kubeconfig_cluster(text.as_bytes());
        let contexts =
            "contexts: [{name: b, context: {cluster: west}}, {name: a, context: {cluster: east}}, {name: c}]";
        let clusters = "clusters: [{name: west}, {name: north}]";
        assert_eq!(id(&format!("current-context: b\n{contexts}\n{clusters}")).as_deref(), Ok("west"));
        assert_eq!(id(&format!("current-context: c\n{contexts}\n{clusters}")).as_deref(), Ok("east"));
        assert_eq!(id(&format!("{contexts}\n{clusters}")).as_deref(), Ok("east"));
        assert_eq!(id(clusters).as_deref(), Ok("north"));
        for text in ["{}", "clusters: [{name: ''}, 1]", "contexts: 1", "[]", "hush: {"] {
            assert!(id(text).is_err_and(|reason| !reason.contains("hush")), "{text}");
        }
    }

    fn kubeconfig() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "two", "preferences": {"colors": true},
            "contexts": [
                {"name": "one", "context": {"cluster": "other", "user": "other"}},
                {"name": "two", "context": {"cluster": "east", "user": "reader", "namespace": "x"}},
            ],
            "clusters": [
                {"name": "other", "cluster": {"server": "https://other"}},
                {"name": "east", "cluster": {"server": "https://hush:6443", "certificate-authority-data": "aHVzaA=="}},
            ],
            "users": [
                {"name": "other", "user": {"token": "hush"}},
                {"name": "reader", "user": {"token": "hush", "username": "", "extensions": [{"name": "x"}], "new": 1}},
            ],
        })
    }

    fn parse(change: impl Fn(&mut Value), allowed: &[&str]) -> Result<Kubeconfig, Vec<KubeconfigFault>> {
        let mut value = kubeconfig();
        change(&mut value);
        let allowed = allowed.iter().map(|option| (*option).to_owned()).collect();
        let parsed = parse_kubeconfig(value.to_string().as_bytes(), &allowed);
        assert!(!format!("{parsed:?}").contains("hush"), "nothing of it is quoted");
        parsed
    }

    fn paths(change: impl Fn(&mut Value), allowed: &[&str]) -> Vec<String> {
        match parse(change, allowed) {
            Ok(_) => Vec::new(),
            Err(faults) => faults.into_iter().map(|fault| fault.path).collect(),
        }
    }

    #[test]
    fn only_the_current_context_is_kept() {
        let kept = parse(|_| {}, &[]).expect("good").into_value();
        assert_eq!(
            kept,
            json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "it",
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                "clusters": [{"name": "it", "cluster": {
                    "server": "https://hush:6443", "certificate-authority-data": "aHVzaA==",
                }}],
                "users": [{"name": "it", "user": {"token": "hush"}}],
            })
        );
        let anonymous = parse(|it| drop(it["contexts"][1]["context"]["user"].take()), &[]).expect("good");
        assert_eq!(anonymous.into_value()["users"][0]["user"], json!({}));
    }

    #[test]
    fn users_with_programs_or_files_are_refused_unless_allowed() {
        let set = |user: usize, field: &'static str, value: Value| {
            move |it: &mut Value| it["users"][user]["user"][field] = value.clone()
        };
        let provider = |name: &str| json!({"name": name, "config": {"cmd-path": "hush"}});
        for (field, value, option) in [
            ("exec", json!({"command": "hush"}), "exec"),
            ("tokenFile", json!("/hush"), "tokenFile"),
            ("client-key", json!("/hush"), "clientKey"),
            ("client-certificate", json!("/hush"), "clientCertificate"),
            ("auth-provider", provider("gcp"), "gcp"),
        ] {
            // The user of a context that is not current is refused too.
            for user in [0, 1] {
                let change = set(user, field, value.clone());
                assert_eq!(paths(&change, &[]), [format!("users[{user}].user.{field}")]);
                assert_eq!(paths(&change, &["other"]), [format!("users[{user}].user.{field}")]);
                assert!(parse(&change, &[option]).is_ok(), "{field}");
            }
        }
        assert_eq!(paths(set(1, "auth-provider", provider("oidc")), &["oidc"]), ["users[1].user.auth-provider"]);
        assert_eq!(paths(set(1, "auth-provider", json!("gcp")), &["gcp"]).len(), 2, "no name, and no map");
        assert!(parse(set(1, "tokenFile", json!("")), &[]).is_ok());
    }

    #[test]
    fn invalid_fields_are_reported_with_their_path() {
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 14] = [
            (|it| it["current-context"] = json!(""), "current-context"),
            (|it| it["current-context"] = json!("hush"), "current-context"),
            (|it| it["contexts"][1]["context"]["cluster"] = json!("hush"), "contexts[1].context.cluster"),
            (|it| it["contexts"][1]["context"]["user"] = json!("hush"), "contexts[1].context.user"),
            (|it| it["contexts"][0]["name"] = json!(7), "contexts[0].name"),
            (|it| it["contexts"][0]["context"] = json!("hush"), "contexts[0].context"),
            (|it| it["clusters"][1]["cluster"]["server"] = json!(""), "clusters[1].cluster.server"),
            (|it| it["clusters"][1]["cluster"]["server"] = json!("hush:6443"), "clusters[1].cluster.server"),
            (|it| it["clusters"][1]["cluster"]["proxy-url"] = json!("http://hush"), "clusters[1].cluster.proxy-url"),
            (
                |it| it["clusters"][1]["cluster"]["certificate-authority"] = json!("/hush"),
                "clusters[1].cluster.certificate-authority",
            ),
            (
                |it| it["clusters"][1]["cluster"]["insecure-skip-tls-verify"] = json!(true),
                "clusters[1].cluster.insecure-skip-tls-verify",
            ),
            (|it| it["users"][1]["user"]["client-key-data"] = json!("h.u"), "users[1].user.client-key-data"),
            (|it| it["users"][1]["user"]["token"] = json!(7), "users[1].user.token"),
            (|it| it["users"] = json!("hush"), "users"),
        ];
        for (change, path) in cases {
            let found = paths(change, &[]);
            assert_eq!(found.first().map(String::as_str), Some(path), "{found:?}");
        }
        for text in ["", "hush", "[]", "a: {hush", "a: 1\n---\nb: 2"] {
            let faults = parse_kubeconfig(text.as_bytes(), &BTreeSet::new()).expect_err("no kubeconfig");
            assert_eq!(faults.iter().map(|fault| fault.path.as_str()).collect::<Vec<_>>(), [""], "{text}");
            assert!(!format!("{faults:?}").contains("hush"), "{faults:?}");
        }
        assert!(parse_kubeconfig(&[0xff, 0xfe], &BTreeSet::new()).is_err());
    }
}
