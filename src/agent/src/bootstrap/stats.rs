//! The statistics that Envoy keeps, and their tags.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_parse::parse_duration;

use crate::pod::PodMetadata;
use crate::settings::Settings;

/// Tags with the pattern of their place in names: the first group is removed, the second is the value.
const TAGS: &[(&str, &str)] = &[
    // Names of clusters and prefixes of listeners contain dots, so they end in `;`.
    ("cluster_name", r"^cluster(\.(.+?);)"),
    ("http_conn_manager_prefix", r"^http\.(([^;]+);\.)"),
    ("tcp_prefix", r"^tcp\.((.+?)\.)\w+$"),
    ("mongo_prefix", r"^mongo\.((.+?)\.)(?:collection|cmd|cx_|op_|delays_|decoding_)"),
    ("listener_address", r"^listener\.(([\da-fA-F_.\[\]:]+)\.)"),
    ("http_conn_manager_listener_prefix", r"^listener\..*?\.http\.(([\da-fA-F_.\[\]]+)\.)"),
    ("thread_name", r"^server(\.(.+))\.watchdog"),
    ("response_code", r"_rq(_(\d{3}))$"),
    ("response_code_class", r"_rq(_(\dxx))$"),
    // Names of Envoy's extensions.
    ("cache", r"(cache\.(.+?)\.)"),
    ("component", r"(component\.(.+?)\.)"),
    ("tag", r"(tag\.(.+?);\.)"),
    ("wasm_filter", r"(wasm_filter\.(.+?)\.)"),
    ("authz_enforce_result", r"rbac(\.(allowed|denied))"),
    ("authz_dry_run_action", r"(\.istio_dry_run_(allow|deny)_)"),
    ("authz_dry_run_result", r"(\.shadow_(allowed|denied))"),
];
/// Statistics that readiness, draining and dashboards need. Istio's build of Envoy counts requests under `reporter=`, `component`
/// and `istio`.
const NEEDED_PREFIXES: [&str; 8] =
    ["reporter=", "cluster_manager", "listener_manager", "server", "cluster.xds-grpc", "wasm", "component", "istio"];
const NEEDED_SUFFIXES: [&str; 4] = ["rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"];
const NEEDED_REGEXES: [&str; 1] = [r"vhost\..*\.route\..*"];

pub(super) fn config(settings: &Settings, warnings: &mut Vec<String>) -> Value {
    let mut tags: Vec<_> = TAGS.iter().map(|(name, regex)| json!({ "tag_name": name, "regex": regex })).collect();
    let from_annotation = settings.pod.annotation("sidecar.istio.io/extraStatTags").unwrap_or_default().split(',');
    let extra =
        settings.proxy.extra_stat_tags.iter().map(String::as_str).chain(from_annotation).filter(|tag| !tag.is_empty());
    let mut added = Vec::new();
    for tag in extra {
        if !added.contains(&tag) {
            added.push(tag);
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
    let configured = |annotation: &str, from_config: Vec<String>| -> Vec<String> {
        let annotated = settings.pod.annotation(annotation).filter(|text| !text.is_empty());
        let patterns = annotated.map_or(from_config, |text| text.split(',').map(ToOwned::to_owned).collect());
        // One pattern for each address of the pod.
        let expand = |pattern: String| match pattern.contains("{pod_ip}") {
            true => addresses.iter().map(|address| pattern.replace("{pod_ip}", address)).collect(),
            false => vec![pattern],
        };
        patterns.into_iter().flat_map(expand).collect()
    };
    let with = |patterns: Vec<String>, needed: &[&str]| -> Vec<String> {
        patterns.into_iter().chain(needed.iter().map(|text| (*text).to_owned())).collect()
    };
    let prefixes =
        with(configured("sidecar.istio.io/statsInclusionPrefixes", matcher.inclusion_prefixes), &NEEDED_PREFIXES);
    let mut suffixes =
        with(configured("sidecar.istio.io/statsInclusionSuffixes", matcher.inclusion_suffixes), &NEEDED_SUFFIXES);
    if settings.drain.until_no_connections {
        suffixes.push("downstream_cx_active".to_owned());
    }
    let regexes =
        with(configured("sidecar.istio.io/statsInclusionRegexps", matcher.inclusion_regexps), &NEEDED_REGEXES);
    let prefixes = prefixes.into_iter().map(|text| json!({ "prefix": text }));
    let suffixes = suffixes.into_iter().map(|text| json!({ "suffix": text }));
    let regexes = regexes.into_iter().map(|text| json!({ "safe_regex": { "regex": text } }));
    prefixes.chain(suffixes).chain(regexes).collect()
}

fn buckets(pod: &PodMetadata, warnings: &mut Vec<String>) -> Option<Value> {
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

/// The intervals of flushing statistics and of evicting unused ones, from annotations.
pub(super) fn intervals(pod: &PodMetadata, warnings: &mut Vec<String>) -> (Option<String>, Option<String>) {
    let mut read = |name: &str| {
        let text = pod.annotation(name)?;
        let duration = parse_duration(text);
        if duration.is_none() {
            warnings.push(format!("annotation {name}: {text:?} is not a duration and is ignored"));
        }
        duration
    };
    let flush = read("sidecar.istio.io/statsFlushInterval");
    let eviction = read("sidecar.istio.io/statsEvictionInterval");
    let flush_millis = flush.map_or(5_000, |flush| flush.as_millis());
    let eviction = eviction.filter(|eviction| {
        let fits = flush_millis > 0 && eviction.as_millis() % flush_millis == 0;
        if !fits {
            let name = "sidecar.istio.io/statsEvictionInterval";
            warnings.push(format!(
                "annotation {name} is ignored: it is not a multiple of the flush interval of {flush_millis} ms"
            ));
        }
        fits
    });
    let text = |duration: std::time::Duration| format!("{}.{:03}s", duration.as_secs(), duration.subsec_millis());
    (flush.map(text), eviction.map(text))
}
