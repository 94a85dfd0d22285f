//! The `wait` subcommand: waits until proxies have acknowledged a change of an object.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::answer_args::WaitArgs;
use crate::answer_output::{AnswerOutput, fail, list, object, print, proxies, text};
use crate::connect::{EXIT_UNREACHABLE, QueryError, connect, seconds};
use crate::replicas::add_progress;

const EXIT_REJECTED: u8 = 1;
const EXIT_TIMED_OUT: u8 = 4;

/// Time after the limit of the wait until the response has to end.
const RESPONSE_GRACE: Duration = Duration::from_secs(15);
/// Time limit of the wait at a replica after those at others have used up the time.
const LEAST_TIMEOUT: Duration = Duration::from_millis(100);

fn parameters<'a>(args: &'a WaitArgs, generation: &'a str, timeout: &'a str) -> [(&'static str, &'a str); 6] {
    [
        ("object", args.object.as_str()),
        ("version", &args.version),
        ("generation", generation),
        ("for", &args.goal),
        ("timeout", timeout),
        ("namespace", &args.namespace),
    ]
}

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &WaitArgs, out: &mut dyn Write, errors: &mut (dyn Write + Send)) -> io::Result<u8> {
    let generation = args.generation.map(|generation| generation.to_string()).unwrap_or_default();
    let (mut written, start) = (Ok(()), Instant::now());
    let followed = connect(&args.server).and_then(|server| {
        let asked = server.ask_all(|replica| {
            // A replica that has no time left still answers how far its proxies are.
            let left = args.timeout.saturating_sub(start.elapsed()).max(LEAST_TIMEOUT);
            let timeout = seconds(left);
            let parameters = parameters(args, &generation, &timeout);
            let mut last = Value::Null;
            server.lines(replica, "wait", &parameters, left + RESPONSE_GRACE, &mut |progress| {
                if args.output == AnswerOutput::Table && progress["state"] != "done" && written.is_ok() {
                    written = writeln!(errors, "{}", line(&progress));
                }
                last = progress;
            })?;
            match exit_code(&last) {
                Some(_) => Ok(last),
                None => Err(QueryError::Response(format!("the progress ended in state {:?}", text(&last, "state")))),
            }
        })?;
        Ok(asked.named())
    });
    written?;
    let (answers, missing) = match followed {
        Ok(followed) => followed,
        Err(error) => return fail(&error, EXIT_REJECTED, errors),
    };
    let sum = answers.into_iter().fold(None, |sum, (_, last)| Some(add_progress(sum, last)));
    let mut last = sum.unwrap_or_default();
    missing.add_to(&mut last);
    missing.report(errors)?;
    print(args.output, &last, out, table)?;
    Ok(missing.exit_code(exit_code(&last).unwrap_or(EXIT_UNREACHABLE)))
}

/// The exit code of the end of a progress; `None` if it has not ended.
fn exit_code(progress: &Value) -> Option<u8> {
    match text(progress, "state") {
        "done" => Some(0),
        "rejected" => Some(EXIT_REJECTED),
        "timed-out" => Some(EXIT_TIMED_OUT),
        _ => None,
    }
}

/// A line about the progress.
fn line(progress: &Value) -> String {
    let report = &progress["proxies"];
    match (text(progress, "state"), report.is_object()) {
        ("not-read", _) => "the change is not read yet".to_owned(),
        (_, true) => format!("{} acknowledged it", of(report)),
        (state, _) => state.to_owned(),
    }
}

fn of(report: &Value) -> String {
    let concerned = report["concerned"].as_u64().unwrap_or_default();
    format!("{} of {}", report["acked"].as_u64().unwrap_or_default(), proxies(concerned))
}

fn table(last: &Value, out: &mut dyn Write) -> io::Result<()> {
    let after = format!("after {:.1} s", last["waitedSeconds"].as_f64().unwrap_or_default());
    let report = &last["proxies"];
    let subject = match (last["object"].is_object(), last["deleted"] == true) {
        (true, _) => object(&last["object"]),
        (false, true) => "the deletion".to_owned(),
        (false, false) => "the change".to_owned(),
    };
    match text(last, "state") {
        "done" if report["concerned"] == 0 => {
            writeln!(out, "{subject} is applied {after}, and concerns no connected proxy")?;
        }
        "done" if report.is_object() => writeln!(out, "{subject} is acknowledged by {} {after}", of(report))?,
        "done" => writeln!(out, "{subject} is applied {after}")?,
        "rejected" => writeln!(out, "{subject} is invalid and does not apply")?,
        _ if report.is_object() => writeln!(out, "timed out {after}: {subject} is acknowledged by {}", of(report))?,
        _ => writeln!(out, "timed out {after}: {subject} is not read yet")?,
    }
    for reject in list(last, "rejects").iter().filter_map(Value::as_str) {
        writeln!(out, "  invalid: {reject}")?;
    }
    if !text(last, "note").is_empty() {
        writeln!(out, "  note: {}", text(last, "note"))?;
    }
    for proxy in list(report, "lagging") {
        let pending = list(proxy, "pending");
        let left_out = proxy["count"].as_u64().unwrap_or_default().saturating_sub(pending.len() as u64);
        for resource in pending {
            let (kind, name) = (text(resource, "type"), text(resource, "name"));
            writeln!(
                out,
                "  {}: {}: {}",
                text(proxy, "proxy"),
                [kind, name].join(" ").trim(),
                text(resource, "reason")
            )?;
        }
        if left_out > 0 {
            writeln!(out, "  {}: {left_out} more resources", text(proxy, "proxy"))?;
        }
    }
    Ok(())
}
