//! Logs of containers, by the API server.

use std::time::Duration;

use http::Request;
use jiff::Timestamp;
use kube::Client;

use crate::bug_report_args::BugReportArgs;

/// The largest log of a container.
const MAX_LOG_BYTES: usize = 32 << 20;
/// Time limit of a request.
const LOG_TIMEOUT: Duration = Duration::from_secs(60);

/// Which entries of logs are read.
#[derive(Clone, Debug)]
pub(super) struct LogRange {
    tail: u32,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
}

impl LogRange {
    /// The range of the flags. A duration ends at the end time, or now.
    pub(super) fn new(args: &BugReportArgs, now: Timestamp) -> Self {
        let end = args.end_time;
        let start = args.start_time.or_else(|| args.duration.and_then(|it| end.unwrap_or(now).checked_sub(it).ok()));
        Self { tail: args.tail, start, end }
    }

    /// The parameters of a request.
    fn query(&self, container: &str, is_previous: bool) -> String {
        let mut query = format!("container={container}&timestamps=true&limitBytes={MAX_LOG_BYTES}");
        if self.tail > 0 {
            query.push_str(&format!("&tailLines={}", self.tail));
        }
        if let Some(start) = self.start {
            query.push_str(&format!("&sinceTime={start:.0}"));
        }
        if is_previous {
            query.push_str("&previous=true");
        }
        query
    }

    /// The entries before the end. Each begins with its time; a line without one belongs to the entry before it.
    fn cut<'t>(&self, text: &'t str) -> &'t str {
        let Some(end) = self.end else { return text };
        let mut length = 0;
        for line in text.split_inclusive('\n') {
            let time = line.split(' ').next().unwrap_or_default().parse::<Timestamp>();
            if time.is_ok_and(|time| time > end) {
                break;
            }
            length += line.len();
        }
        &text[..length]
    }
}

/// The log of a container, or of the instance before its last restart.
///
/// # Errors
/// The API server does not have it, or does not answer in time.
pub(super) async fn read(
    client: &Client,
    (namespace, pod, container): (&str, &str, &str),
    range: &LogRange,
    is_previous: bool,
) -> Result<String, String> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log?{}", range.query(container, is_previous));
    let request = Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
    let answer = tokio::time::timeout(LOG_TIMEOUT, client.request_text(request)).await;
    let text = answer.map_err(|_| format!("no answer in {LOG_TIMEOUT:?}"))?;
    let text = text.map_err(|error| sluice_kube::chain(&error))?;
    Ok(range.cut(&text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn range_is_part_of_the_request() {
        let range = LogRange { tail: 10, start: Some(time("2026-01-01T00:00:00Z")), end: None };
        let expected = "container=app&timestamps=true&limitBytes=33554432&tailLines=10&sinceTime=2026-01-01T00:00:00Z";
        assert_eq!(range.query("app", false), expected);
        let all = LogRange { tail: 0, start: None, end: None };
        assert_eq!(all.query("a", true), "container=a&timestamps=true&limitBytes=33554432&previous=true");
    }

    #[test]
    fn entries_after_the_end_are_left_out_with_their_lines() {
        let range = LogRange { tail: 0, start: None, end: Some(time("2026-01-01T00:00:01Z")) };
        let text = "2026-01-01T00:00:00.5Z a\nmore\n2026-01-01T00:00:01Z b\n2026-01-01T00:00:02Z c\nmore\n";
        assert_eq!(range.cut(text), "2026-01-01T00:00:00.5Z a\nmore\n2026-01-01T00:00:01Z b\n");
        assert_eq!(LogRange { end: None, ..range }.cut(text), text);
    }
}
