//! Which statistics Envoy keeps, and what of their names becomes a tag.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_parse::parse_duration;

use crate::pod::Pod;
use crate::settings::Settings;

/// Tags and where they stand in names: the first group is taken out, the second is the value.
const TAGS: &[(&str, &str)] = &[
    // Names of clusters and prefixes of listeners end in `;`, for they hold dots.
    ("cluster_name", r"^cluster(\.(.+?);)"),
    ("http_conn_manager_prefix", r"^http\.(([^;]+);\.)"),
    ("tcp_prefix", r"^tcp\.((.+?)\.)\w+$"),
    ("mongo_prefix", r"^mongo\.((.+?)\.)(?:collection|cmd|cx_|op_|delays_|decoding_)"),
    ("listener_address", r"^listener\.(([\da-fA-F_.\[\]:]+)\.)"),
    ("http_conn_manager_listener_prefix", r"^listener\..*?\.http\.(([\da-fA-F_.\[\]]+)\.)"),
    ("thread_name", r"^server(\.(.+))\.watchdog"),
    ("response_code", r"_rq(_(\d{3}))$"),
    ("response_code_class", r"_rq(_(\dxx))$"),
    // What extensions of Envoy name so.
    ("cache", r"(cache\.(.+?)\.)"),
    ("component", r"(component\.(.+?)\.)"),
    ("tag", r"(tag\.(.+?);\.)"),
    ("wasm_filter", r"(wasm_filter\.(.+?)\.)"),
    ("authz_enforce_result", r"rbac(\.(allowed|denied))"),
    ("authz_dry_run_action", r"(\.istio_dry_run_(allow|deny)_)"),
    ("authz_dry_run_result", r"(\.shadow_(allowed|denied))"),
];
/// What readiness, draining and dashboards of requests and authorization need. An Envoy of Istio's build counts requests
/// below `reporter=`, `component` and `istio`.
const PREFIXES: [&str; 8] =
    ["reporter=", "cluster_manager", "listener_manager", "server", "cluster.xds-grpc", "wasm", "component", "istio"];
const SUFFIXES: [&str; 4] = ["rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"];
const REGEXES: [&str; 1] = [r"vhost\..*\.route\..*"];

pub(super) fn config(settings: &Settings, warnings: &mut Vec<String>) -> Value {
    let mut tags: Vec<_> = TAGS.iter().map(|(name, regex)| json!({ "tag_name": name, "regex": regex })).collect();
    let annotated = settings.pod.annotation("sidecar.istio.io/extraStatTags").unwrap_or_default().split(',');
    let extra =
        settings.proxy.extra_stat_tags.iter().map(String::as_str).chain(annotated).filter(|tag| !tag.is_empty());
    let mut seen = Vec::new();
    for tag in extra {
        if !seen.contains(&tag) {
            seen.push(tag);
            tags.push(json!({ "tag_name": tag, "regex": format!(r"({tag}=\.=(.*?);\.)") }));
        }
    }
    let mut config = json!({
        "use_all_default_tags": false,
        "stats_tags": tags,
        "stats_matcher": { "inclusion_list": { "patterns": patterns(settings) } },
    });
    if let Some(buckets) = buckets(&settings.pod, warnings) {
        config["histogram_bucket_settings"] = buckets;
    }
    config
}

fn patterns(settings: &Settings) -> Vec<Value> {
    let matcher = settings.proxy.proxy_stats_matcher.clone().unwrap_or_default();
    let addresses: Vec<_> = settings.addresses.iter().map(ToString::to_string).collect();
    let asked = |annotation: &str, configured: Vec<String>| -> Vec<String> {
        let own = settings.pod.annotation(annotation).filter(|text| !text.is_empty());
        let asked = own.map_or(configured, |text| text.split(',').map(ToOwned::to_owned).collect());
        // One pattern for each address of the pod.
        let each = |pattern: String| match pattern.contains("{pod_ip}") {
            true => addresses.iter().map(|address| pattern.replace("{pod_ip}", address)).collect(),
            false => vec![pattern],
        };
        asked.into_iter().flat_map(each).collect()
    };
    let with = |asked: Vec<String>, needed: &[&str]| -> Vec<String> {
        asked.into_iter().chain(needed.iter().map(|text| (*text).to_owned())).collect()
    };
    let prefixes = with(asked("sidecar.istio.io/statsInclusionPrefixes", matcher.inclusion_prefixes), &PREFIXES);
    let mut suffixes = with(asked("sidecar.istio.io/statsInclusionSuffixes", matcher.inclusion_suffixes), &SUFFIXES);
    if settings.drain.until_no_connections {
        suffixes.push("downstream_cx_active".to_owned());
    }
    let regexes = with(asked("sidecar.istio.io/statsInclusionRegexps", matcher.inclusion_regexps), &REGEXES);
    let prefixes = prefixes.into_iter().map(|text| json!({ "prefix": text }));
    let suffixes = suffixes.into_iter().map(|text| json!({ "suffix": text }));
    let regexes = regexes.into_iter().map(|text| json!({ "safe_regex": { "regex": text } }));
    prefixes.chain(suffixes).chain(regexes).collect()
}

fn buckets(pod: &Pod, warnings: &mut Vec<String>) -> Option<Value> {
    let text = pod.annotation("sidecar.istio.io/statsHistogramBuckets")?;
    match serde_json::from_str::<BTreeMap<String, Vec<f64>>>(text) {
        Ok(buckets) => {
            let setting = |(prefix, buckets)| json!({ "match": { "prefix": prefix }, "buckets": buckets });
            Some(buckets.into_iter().map(setting).collect())
        }
        Err(error) => {
            warnings.push(format!("annotation sidecar.istio.io/statsHistogramBuckets: {error}"));
            None
        }
    }
}

/// How often statistics are flushed, and how often unused ones are forgotten, as annotations say.
pub(super) fn intervals(pod: &Pod, warnings: &mut Vec<String>) -> (Option<String>, Option<String>) {
    let mut read = |name: &str| {
        let text = pod.annotation(name)?;
        let duration = parse_duration(text);
        if duration.is_none() {
            warnings.push(format!("annotation {name}: {text:?} is no duration"));
        }
        duration
    };
    let flush = read("sidecar.istio.io/statsFlushInterval");
    let eviction = read("sidecar.istio.io/statsEvictionInterval");
    let every = flush.map_or(5_000, |flush| flush.as_millis());
    let eviction = eviction.filter(|eviction| {
        let fits = every > 0 && eviction.as_millis() % every == 0;
        if !fits {
            let name = "sidecar.istio.io/statsEvictionInterval";
            warnings.push(format!("annotation {name}: not a multiple of the flush interval of {every} ms"));
        }
        fits
    });
    let text = |duration: std::time::Duration| format!("{}.{:03}s", duration.as_secs(), duration.subsec_millis());
    (flush.map(text), eviction.map(text))
}
