//! The queries of istioctl about a workload, in PromQL. All of them are about what the servers report.

use std::time::Duration;

use crate::connect::QueryError;

const REQUESTS: &str = "istio_requests_total";
const LATENCY_BUCKETS: &str = "istio_request_duration_milliseconds_bucket";

/// Workloads that are named on the command line. Both are beginnings of names.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct MeasuredWorkload {
    name: String,
    namespace: String,
}

impl MeasuredWorkload {
    /// `NAME[.NAMESPACE]`.
    pub(super) fn parse(text: &str) -> Result<Self, QueryError> {
        let (name, namespace) = text.rsplit_once('.').unwrap_or((text, ""));
        // Anything else is no name in Kubernetes, and would be a part of the query.
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
        if name.is_empty() || !is_name(name) || !is_name(namespace) {
            let accepted = "NAME and NAME.NAMESPACE are accepted";
            return Err(QueryError::Flags(format!("WORKLOAD {text:?} is no name of a workload; {accepted}")));
        }
        Ok(Self { name: name.to_owned(), namespace: namespace.to_owned() })
    }

    /// Requests per second.
    pub(super) fn requests(&self, range: &str) -> String {
        self.sum_of_rates(REQUESTS, "", range)
    }

    /// Requests per second with an error.
    pub(super) fn errors(&self, range: &str) -> String {
        self.sum_of_rates(REQUESTS, r#",response_code=~"[45][0-9]{2}""#, range)
    }

    /// A quantile of the latencies, in milliseconds.
    pub(super) fn latency(&self, quantile: &str, range: &str) -> String {
        format!("histogram_quantile({quantile}, {} by (le))", self.sum_of_rates(LATENCY_BUCKETS, "", range))
    }

    fn sum_of_rates(&self, metric: &str, further: &str, range: &str) -> String {
        // A dot matches any character.
        let [name, namespace] = [&self.name, &self.namespace].map(|it| it.replace('.', r"\\."));
        format!(
            r#"sum(rate({metric}{{destination_workload=~"{name}.*", destination_workload_namespace=~"{namespace}.*",reporter="destination"{further}}}[{range}]))"#
        )
    }
}

/// A range of a query. Prometheus knows milliseconds.
pub(super) fn range(duration: Duration) -> Result<String, QueryError> {
    if duration.as_millis() == 0 {
        return Err(QueryError::Flags("--duration: 1ms is the shortest duration".to_owned()));
    }
    // Prometheus reads no fractions.
    if duration.subsec_millis() > 0 {
        return Ok(format!("{}ms", duration.as_millis()));
    }
    Ok(go_duration(Duration::from_secs(duration.as_secs())))
}

/// A duration of whole milliseconds as Go prints it: `1h0m0s`, `1.5s`, `20ms`.
pub(super) fn go_duration(duration: Duration) -> String {
    let (seconds, milliseconds) = (duration.as_secs(), duration.subsec_millis());
    if seconds == 0 && milliseconds > 0 {
        return format!("{milliseconds}ms");
    }
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    let fraction = format!("{milliseconds:03}");
    let fraction = match fraction.trim_end_matches('0') {
        "" => String::new(),
        digits => format!(".{digits}"),
    };
    let rest = format!("{}{fraction}s", seconds % 60);
    match (hours, minutes) {
        (0, 0) => rest,
        (0, minutes) => format!("{minutes}m{rest}"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_those_of_istioctl() {
        let workload = MeasuredWorkload::parse("details").expect("a name");
        let requests = r#"sum(rate(istio_requests_total{destination_workload=~"details.*", destination_workload_namespace=~".*",reporter="destination"}[1m0s]))"#;
        assert_eq!(workload.requests("1m0s"), requests);
        let errors = r#"sum(rate(istio_requests_total{destination_workload=~"details.*", destination_workload_namespace=~".*",reporter="destination",response_code=~"[45][0-9]{2}"}[1m0s]))"#;
        assert_eq!(workload.errors("1m0s"), errors);
        let latency = r#"histogram_quantile(0.900000, sum(rate(istio_request_duration_milliseconds_bucket{destination_workload=~"details.*", destination_workload_namespace=~".*",reporter="destination"}[1m0s])) by (le))"#;
        assert_eq!(workload.latency("0.900000", "1m0s"), latency);
    }

    #[test]
    fn names_have_a_namespace_and_cannot_change_the_query() {
        let parse = |text| MeasuredWorkload::parse(text).map(|it| (it.name, it.namespace));
        assert_eq!(parse("cart-v1.shop").expect("a name"), ("cart-v1".to_owned(), "shop".to_owned()));
        let query = MeasuredWorkload::parse("cart.v1.shop").expect("a name").requests("1s");
        assert!(query.contains(r#"destination_workload=~"cart\\.v1.*""#), "{query}");
        for text in ["", ".shop", "a\"}", "a{", "a.b\\", "a b", ".*"] {
            assert_eq!(parse(text).expect_err(text).exit_code(1), 2, "{text}");
        }
    }

    #[test]
    fn durations_are_those_of_go_and_ranges_have_no_fractions() {
        let milliseconds =
            [(0, "0s"), (4, "4ms"), (1_000, "1s"), (1_050, "1.05s"), (60_000, "1m0s"), (3_661_500, "1h1m1.5s")];
        for (milliseconds, expected) in milliseconds {
            assert_eq!(go_duration(Duration::from_millis(milliseconds)), expected);
        }
        let range = |milliseconds| range(Duration::from_millis(milliseconds));
        assert_eq!(range(60_000).expect("a range"), "1m0s");
        assert_eq!(range(1_500).expect("a range"), "1500ms");
        assert_eq!(range(0).expect_err("no range").exit_code(1), 2);
    }
}
