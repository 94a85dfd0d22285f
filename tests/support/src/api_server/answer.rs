//! Handles requests: lists, watches, and patches of statuses.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode, header};
use bytes::Bytes;
use serde_json::{Value, json};

use super::fault::wrong_answer;
use super::metadata::{self, Form};
use super::response::{broken_response, json_response, status, text_response};
use super::store::{PagedList, StoreEvent};
use super::versions::{self, Part};
use super::{ReceivedRequest, Shared, discovery, patch, port_forward, write};

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new().fallback(answer).with_state(shared)
}

/// The objects that a request reads.
#[derive(Clone, Debug)]
struct ReadTarget {
    group: String,
    version: String,
    resource: String,
    namespace: String,
    query: BTreeMap<String, String>,
    form: Form,
    /// Kind of the objects.
    kind: String,
}

impl ReadTarget {
    fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = header.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    let rejected = {
        let tokens = &shared.state().faults.tokens;
        tokens.as_ref().is_some_and(|tokens| !tokens.contains(token))
    };
    if rejected {
        return status(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized");
    }
    let parts: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
    if let Some(answer) = discovery::answer(&shared, &parts).await {
        return answer;
    }
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return status(StatusCode::NOT_FOUND, "NotFound", "no such path"),
    };
    if let ["namespaces", namespace, "pods", pod, part @ ("log" | "portforward")] = rest {
        let ([namespace, pod], part) = ([namespace, pod].map(|text| (*text).to_owned()), (*part).to_owned());
        return port_forward::answer(&shared, (&namespace, &pod), &part, request);
    }
    if let Some(target) = write::route(&shared, group, rest, request.method()) {
        let (verb, resource) = target.names();
        for name in [&format!("{verb} {resource}"), resource] {
            if let Some(answer) = wrong_answer(&shared, name).await {
                return answer;
            }
        }
        if !shared.state().store.may_serve(group, version, resource) {
            return status(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource");
        }
        let group = group.to_owned();
        let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_apply = content_type.is_some_and(|it| it.starts_with("application/apply-patch"));
        return write::answer(&shared, &group, target.applying(is_apply), request.into_body()).await;
    }
    let (namespace, resource) = match rest {
        ["namespaces", _, resource, name, "status"] | [resource, name, "status"]
            if request.method() == Method::PATCH =>
        {
            let namespace = if let ["namespaces", namespace, ..] = rest { namespace } else { "" };
            let target = [group, resource, namespace, name].map(str::to_owned);
            if let Some(answer) = wrong_answer(&shared, resource).await {
                return answer;
            }
            return patch_status(&shared, target, request.into_body()).await;
        }
        ["namespaces", namespace, resource] => (*namespace, *resource),
        [resource] => ("", *resource),
        _ => return status(StatusCode::NOT_FOUND, "NotFound", "no such path"),
    };
    let query = request.uri().query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let accepted = metadata::accepted(request.headers());
    let mut target = ReadTarget {
        group: group.to_owned(),
        version: version.to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        query: query.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        form: accepted.unwrap_or(Form::Whole),
        kind: String::new(),
    };
    let is_watch = target.query.get("watch").is_some_and(|value| value == "true" || value == "1");
    let delay = {
        let mut state = shared.state();
        let received = ReceivedRequest {
            verb: if is_watch { "watch" } else { "list" }.to_owned(),
            group: target.group.clone(),
            resource: target.resource.clone(),
            namespace: target.namespace.clone(),
        };
        *state.requests.entry(received).or_default() += 1;
        state.faults.slow_lists
    };
    if let Some(answer) = wrong_answer(&shared, &target.resource).await {
        return answer;
    }
    {
        let state = shared.state();
        let Some(kind) = state.store.find(&target.group, &target.version, &target.resource) else {
            return status(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource");
        };
        target.kind = kind.name.to_owned();
        if state.faults.forbidden.contains(resource) {
            return status(StatusCode::FORBIDDEN, "Forbidden", "forbidden by the test");
        }
    }
    // A list is not one object. A real server accepts a watch in the form of a list and then cannot encode its events.
    if accepted.is_none() || (!is_watch && target.form == Form::Metadata) {
        return status(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", "the Accept header names no form of the response");
    }
    if is_watch {
        return watch(shared, target);
    }
    tokio::time::sleep(delay).await;
    list(&shared, &target)
}

/// A patch of an object's status: a JSON patch, which is a list, or a merge patch.
async fn patch_status(shared: &Shared, target: [String; 4], body: Body) -> Response<Body> {
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
    let [group, resource, namespace, name] = &target;
    let (result, code, reason) = {
        let mut state = shared.state();
        let received = ReceivedRequest {
            verb: "patch".to_owned(),
            group: group.clone(),
            resource: format!("{resource}/status"),
            namespace: String::new(),
        };
        *state.requests.entry(received).or_default() += 1;
        if state.faults.forbidden.contains(&format!("{resource}/status")) {
            (Err("forbidden by the test".to_owned()), StatusCode::FORBIDDEN, "Forbidden")
        } else if let Some(object) = state.store.get(group, resource, namespace, name) {
            let traits = state.store.traits(group, resource);
            let patched = match &sent {
                Value::Object(_) => Ok(patch::merged(&object, &sent)),
                _ => patch::apply(&object, &sent),
            };
            let patched = patched.and_then(|patched| {
                let replaced = versions::replace(&mut state.store, object, patched, Part::Status, traits);
                replaced.ok_or_else(|| "the status is invalid".to_owned())
            });
            (patched, StatusCode::UNPROCESSABLE_ENTITY, "Invalid")
        } else {
            (Err("no such object".to_owned()), StatusCode::NOT_FOUND, "NotFound")
        }
    };
    match result {
        Ok(object) => {
            shared.changed.send_modify(|count| *count += 1);
            json_response(StatusCode::OK, &object)
        }
        Err(message) => status(code, reason, &message),
    }
}

/// Whether the selectors of a request match an object. Only `status.phase!=Failed`, `metadata.name=NAME` and one label
/// with its value are supported: tests use no other selector.
fn selects(target: &ReadTarget) -> impl Fn(&Value) -> bool + use<> {
    let selector = target.query.get("fieldSelector").cloned().unwrap_or_default();
    let no_failed = selector == "status.phase%21%3DFailed";
    let name = selector.strip_prefix("metadata.name%3D").map(str::to_owned);
    let selector = target.query.get("labelSelector").map(|it| it.replace("%2F", "/").replace("%3D", "="));
    let selector = selector.filter(|it| !it.is_empty()).map(|it| it.replace("%2C", ","));
    move |object| {
        let labels = &object["metadata"]["labels"];
        let has = |label: &str| label.split_once('=').is_some_and(|(name, value)| labels[name] == value);
        if !selector.iter().flat_map(|selector| selector.split(',')).all(has) {
            return false;
        }
        let is_failed = object.pointer("/status/phase").and_then(Value::as_str) == Some("Failed");
        let is_named = |name: &String| object.pointer("/metadata/name").and_then(Value::as_str) == Some(name);
        !(no_failed && is_failed) && name.as_ref().is_none_or(is_named)
    }
}

fn partial_object(object: &Value) -> Value {
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"]})
}

fn representation(target: &ReadTarget, object: &Value) -> Value {
    if target.form == Form::Metadata { partial_object(object) } else { object.clone() }
}

fn list(shared: &Shared, target: &ReadTarget) -> Response<Body> {
    let mut state = shared.state();
    let page = match target.query.get("continue") {
        Some(token) => state.store.take_page(token),
        None => Some(state.store.list(&target.group, &target.resource, &target.namespace, selects(target))),
    };
    let Some(PagedList { version, mut objects }) = page else {
        return status(StatusCode::GONE, "Expired", "the provided continue parameter is too old");
    };
    let limit = target.query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if objects.len() > limit {
        let rest = objects.split_off(limit);
        metadata["remainingItemCount"] = rest.len().into();
        metadata["continue"] = state.store.store_page(PagedList { version, objects: rest }).into();
    }
    drop(state);
    let items: Vec<Cow<'_, str>> = objects
        .iter()
        .map(|stored| match target.form {
            Form::Whole => stored.item().into(),
            _ => partial_object(&stored.object).to_string().into(),
        })
        .collect();
    let (kind, version) = match target.form {
        Form::Whole => (format!("{}List", target.kind), target.api_version()),
        _ => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
    };
    let items = items.join(",");
    let list = format!(r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{metadata},"items":[{items}]}}"#);
    match breaks_off(shared, &target.resource) {
        true => broken_response(list),
        false => text_response(StatusCode::OK, list),
    }
}

/// Whether a list is to be broken off.
fn breaks_off(shared: &Shared, resource: &str) -> bool {
    let mut state = shared.state();
    let Some(count) = state.faults.broken_lists.get_mut(resource) else { return false };
    let breaks = *count > 0;
    *count = count.saturating_sub(1);
    breaks
}

fn watch(shared: Arc<Shared>, target: ReadTarget) -> Response<Body> {
    let has = |name: &str, value: &str| target.query.get(name).is_some_and(|it| it == value);
    let version = target.query.get("resourceVersion").and_then(|text| text.parse().ok());
    let (lines, from) = if has("sendInitialEvents", "true") {
        if !shared.state().faults.streams_lists || !has("resourceVersionMatch", "NotOlderThan") {
            let text = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch";
            return status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", text);
        }
        *shared.state().streamed_lists.entry(target.resource.clone()).or_default() += 1;
        let (lines, version) = initial_events(&shared, &target);
        if breaks_off(&shared, &target.resource) {
            return broken_response(
                lines.into_iter().map(|line| String::from_utf8_lossy(&line).into_owned()).collect(),
            );
        }
        (lines, version)
    } else {
        (VecDeque::new(), version.unwrap_or_default())
    };
    let seconds = target.query.get("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(3600);
    let watch = WatchStream {
        changed: shared.changed.subscribe(),
        disconnected: shared.disconnected.subscribe(),
        silenced: shared.silenced.subscribe(),
        shared,
        target,
        sent_version: from,
        ends: Instant::now() + Duration::from_secs(seconds),
        lines,
    };
    let lines = futures::stream::unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        Some((Ok::<Bytes, Infallible>(line), watch))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

/// The events of a streaming list with the bookmark of its end, and its resourceVersion.
fn initial_events(shared: &Shared, target: &ReadTarget) -> (VecDeque<Bytes>, u64) {
    let state = shared.state();
    let list = state.store.list(&target.group, &target.resource, &target.namespace, selects(target));
    let mut lines: VecDeque<Bytes> =
        list.objects.iter().map(|stored| line("ADDED", &representation(target, &stored.object))).collect();
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let metadata = json!({"resourceVersion": list.version.to_string(), "annotations": annotations});
    let object = json!({"apiVersion": target.api_version(), "kind": target.kind, "metadata": metadata});
    lines.push_back(line("BOOKMARK", &representation(target, &object)));
    (lines, list.version)
}

struct WatchStream {
    shared: Arc<Shared>,
    target: ReadTarget,
    changed: tokio::sync::watch::Receiver<u64>,
    disconnected: tokio::sync::watch::Receiver<u64>,
    silenced: tokio::sync::watch::Receiver<u64>,
    /// Version up to which the watch has sent all events.
    sent_version: u64,
    ends: Instant,
    lines: VecDeque<Bytes>,
}

impl WatchStream {
    /// The next line, or the end of the watch.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.silenced.has_changed().is_ok_and(|changed| changed) {
                return std::future::pending().await;
            }
            if let Some(line) = self.lines.pop_front() {
                // An event is not a list, so it has no such form.
                return (self.target.form != Form::MetadataList).then_some(line);
            }
            self.changed.borrow_and_update();
            self.collect();
            if !self.lines.is_empty() {
                continue;
            }
            if Instant::now() >= self.ends {
                return None;
            }
            tokio::select! {
                _ = self.disconnected.changed() => return None,
                _ = self.silenced.changed() => return std::future::pending().await,
                changed = self.changed.changed() => if changed.is_err() { return None },
                () = tokio::time::sleep_until(self.ends.into()) => return None,
                () = tokio::time::sleep(self.shared.bookmark_interval) => {
                    let metadata = json!({"resourceVersion": self.sent_version.to_string()});
                    let (version, kind) = (self.target.api_version(), &self.target.kind);
                    let object = json!({"apiVersion": version, "kind": kind, "metadata": metadata});
                    self.lines.push_back(line("BOOKMARK", &representation(&self.target, &object)));
                    self.shared.state().bookmarks.insert(self.target.resource.clone(), self.sent_version);
                }
            }
        }
    }

    fn collect(&mut self) {
        let state = self.shared.state();
        if self.sent_version < state.store.floor() {
            let expired =
                json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"});
            self.lines.push_back(line("ERROR", &expired));
            self.sent_version = state.store.version();
            self.ends = Instant::now();
            return;
        }
        let target = &self.target;
        let selects = selects(target);
        for event in state.store.since(&target.group, &target.resource, &target.namespace, self.sent_version) {
            let StoreEvent { old, is_deleted, object, .. } = event;
            let was_selected = old.is_some_and(|old| selects(&old.object));
            let kind = match (was_selected, !is_deleted && selects(&object.object)) {
                (false, false) => continue,
                (true, false) => "DELETED",
                (false, true) => "ADDED",
                (true, true) => "MODIFIED",
            };
            self.lines.push_back(line(kind, &representation(target, &object.object)));
        }
        self.sent_version = state.store.version();
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    Bytes::from(json!({"type": kind, "object": object}).to_string() + "\n")
}
