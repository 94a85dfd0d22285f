//! The `experimental metrics` subcommand (I08): rates and latencies of workloads, from a Prometheus server.

mod prometheus;
mod queries;

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::answer_output::{elements, fail, print, text};
use crate::connect::QueryError;
use crate::metrics_args::MetricsArgs;
use prometheus::Prometheus;
use queries::MeasuredWorkload;

const EXIT_NOT_FOUND: u8 = 1;
/// Width of the first column, as in istioctl.
const NAME_WIDTH: usize = 42;
const COLUMN_WIDTH: usize = 13;
const GAP: usize = 2;
/// What stands for a number that there is not.
const NONE: &str = "-";
const LATENCIES: [(&str, &str); 3] =
    [("p50Milliseconds", "0.500000"), ("p90Milliseconds", "0.900000"), ("p99Milliseconds", "0.990000")];

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &MetricsArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    match metrics(args) {
        Ok(rows) => print(args.output, &rows, out, print_table).map(|()| 0),
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

fn metrics(args: &MetricsArgs) -> Result<Value, QueryError> {
    let range = queries::range(args.duration)?;
    let workloads = args.workloads.iter().map(|name| MeasuredWorkload::parse(name)).collect::<Result<Vec<_>, _>>()?;
    let prometheus = Prometheus::connect(args)?;
    args.workloads
        .iter()
        .zip(&workloads)
        .map(|(name, workload)| of_workload(name, workload, &range, &prometheus))
        .collect()
}

fn of_workload(
    name: &str,
    workload: &MeasuredWorkload,
    range: &str,
    prometheus: &Prometheus,
) -> Result<Value, QueryError> {
    let mut row = json!({"workload": name});
    // A workload without requests has no series.
    let rate = |query: String| prometheus.sample(&query).map(|sample| sample.unwrap_or(0.0));
    row["requestsPerSecond"] = number(rate(workload.requests(range))?);
    row["errorsPerSecond"] = number(rate(workload.errors(range))?);
    for (field, quantile) in LATENCIES {
        row[field] = prometheus.sample(&workload.latency(quantile, range))?.map_or(Value::Null, number);
    }
    Ok(row)
}

/// A number that is neither infinite nor negative; null otherwise, such as for a quotient of zeros.
fn number(number: f64) -> Value {
    if number.is_finite() && number >= 0.0 { number.into() } else { Value::Null }
}

fn print_table(rows: &Value, out: &mut dyn Write) -> io::Result<()> {
    let titles = ["WORKLOAD", "TOTAL RPS", "ERROR RPS", "P50 LATENCY", "P90 LATENCY", "P99 LATENCY"];
    print_row(&titles.map(str::to_owned), out)?;
    for row in elements(rows) {
        let rate = |field: &str| row[field].as_f64().map_or(NONE.to_owned(), |rate| format!("{rate:.3}"));
        let [p50, p90, p99] = LATENCIES.map(|(field, _)| row[field].as_f64().map_or(NONE.to_owned(), latency));
        let cells =
            [text(row, "workload").to_owned(), rate("requestsPerSecond"), rate("errorsPerSecond"), p50, p90, p99];
        print_row(&cells, out)?;
    }
    Ok(())
}

/// Prints cells that end at the same columns.
fn print_row([name, cells @ ..]: &[String; 6], out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{name:>NAME_WIDTH$}")?;
    for cell in cells {
        write!(out, "{:>width$}", cell, width = COLUMN_WIDTH.max(cell.len() + GAP))?;
    }
    writeln!(out)
}

/// Whole milliseconds, as istioctl prints them.
fn latency(milliseconds: f64) -> String {
    // The conversion saturates, and the number is not negative.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "fractions are cut off")]
    queries::go_duration(Duration::from_millis(milliseconds as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_that_of_istioctl() {
        let rows = json!([
            {"workload": "details", "requestsPerSecond": 0.04, "errorsPerSecond": 0.0, "p50Milliseconds": 2.5,
             "p90Milliseconds": 4.5, "p99Milliseconds": 4.95},
            {"workload": "a-workload-with-a-name-that-is-longer-than-the-column", "requestsPerSecond": 12345678901234.5,
             "errorsPerSecond": null, "p50Milliseconds": null, "p90Milliseconds": 61_500.0, "p99Milliseconds": 1e300},
        ]);
        let mut out = Vec::new();
        print_table(&rows, &mut out).expect("written");
        let text = String::from_utf8(out).expect("UTF-8");
        let expected = "                                  WORKLOAD    TOTAL RPS    ERROR RPS  P50 LATENCY  P90 LATENCY  P99 LATENCY
                                   details        0.040        0.000          2ms          4ms          4ms
";
        assert!(text.starts_with(expected), "{text}");
        let cells: Vec<&str> = text.lines().last().expect("a line").split_whitespace().skip(1).collect();
        assert_eq!(cells[..4], ["12345678901234.500", "-", "-", "1m1.5s"]);
    }

    #[test]
    fn numbers_that_mean_nothing_are_null() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
            assert_eq!(number(value), Value::Null, "{value}");
        }
        assert_eq!(number(0.5), json!(0.5));
    }
}
