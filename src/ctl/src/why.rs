//! The `why` subcommand: the objects that made a resource of a proxy, or a field of it.

use std::io::{self, Write};

use serde_json::Value;

use crate::answer_args::WhyArgs;
use crate::answer_output::{fail, joined, list, object, print, proxies, text};
use crate::columns::{columns, table as titled};
use crate::connect::connect;
use crate::replicas::sum_frontiers;

const EXIT_NOT_FOUND: u8 = 1;
/// Characters of a value in the table.
const MAX_VALUE_CHARS: usize = 200;

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &WhyArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let parameters = [
        ("proxy", args.proxy.as_str()),
        ("type", &args.kind),
        ("name", &args.name),
        ("path", &args.path),
        ("namespace", &args.namespace),
    ];
    let answer = connect(&args.server).and_then(|server| {
        let (mut answer, mut missing) = server.get_with_replica("why", &parameters)?;
        let of_resource = [("type", text(&answer, "type").to_owned()), ("name", text(&answer, "name").to_owned())];
        let of_resource = of_resource.each_ref().map(|(name, value)| (*name, value.as_str()));
        let others = server.get_of_others(text(&answer, "replica"), &mut missing, "frontier", &of_resource)?;
        sum_frontiers(&mut answer["holders"], &others);
        missing.add_to(&mut answer);
        Ok((answer, missing))
    });
    match answer {
        Ok((answer, missing)) => {
            missing.report(errors)?;
            print(args.output, &answer, out, table)?;
            Ok(missing.exit_code(0))
        }
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

fn table(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{} {} of {}", text(answer, "type"), text(answer, "name"), text(answer, "proxy"))?;
    let of = answer["proxiesOfWorkload"].as_u64().unwrap_or(1);
    if of > 1 {
        writeln!(out, "This is the first of {} of the workload.", proxies(of))?;
    }
    if !text(answer, "path").is_empty() {
        writeln!(out, "{} = {}", text(answer, "path"), shortened(&answer["value"]))?;
    }
    writeln!(out)?;
    objects(answer, out)?;
    last_change(answer, out)?;
    progress(answer, out)
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}… (-o json shows all)", &text[..end]),
        None => text,
    }
}

fn objects(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    let titles = ["MADE BY", "SOURCE", "FIELDS"];
    let row = |made: &Value| {
        let fields = if made["required"] == true { "(all)".to_owned() } else { joined(made, "fields", ", ") };
        vec![text(made, "object").to_owned(), text(made, "source").to_owned(), fields]
    };
    let made_by = list(answer, "madeBy");
    if made_by.is_empty() {
        writeln!(out, "No single object makes a difference to it.")?;
    } else {
        columns(&titled(&titles, made_by.iter().map(row)), out)?;
        writeln!(out, "\nTHROUGH")?;
        for made in made_by.iter().filter(|made| !list(made, "through").is_empty()) {
            writeln!(out, "{}: {}", text(made, "object"), joined(made, "through", " > "))?;
        }
    }
    if !text(answer, "note").is_empty() {
        writeln!(out, "\nNote: {}.", text(answer, "note"))?;
    }
    let read: Vec<&str> = list(answer, "alsoRead").iter().map(|read| text(read, "object")).collect();
    if !read.is_empty() {
        let more = answer["alsoReadLeftOut"].as_u64().unwrap_or_default();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        writeln!(out, "\nAlso read, without an effect of their own: {}{more}", read.join(", "))?;
    }
    match answer["segmentsLeftOut"].as_u64().unwrap_or_default() {
        0 => Ok(()),
        left_out => writeln!(out, "\n{left_out} parts of the resource are not explained: select one by PATH."),
    }
}

fn last_change(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    let change = &answer["lastChange"];
    let Some(epoch) = change["epoch"].as_u64() else {
        return writeln!(out, "\nLast change: before the history begins");
    };
    let by: Vec<String> = list(change, "objects").iter().map(object).collect();
    let by = if by.is_empty() { String::new() } else { format!(", by {}", by.join(", ")) };
    writeln!(out, "\nLast change: epoch {epoch} of replica {} at {}{by}", text(answer, "replica"), text(change, "at"))
}

fn progress(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    let progress = &answer["progress"];
    let of_proxy = match (progress.is_object(), text(progress, "error")) {
        (false, _) => "does not subscribe to it".to_owned(),
        (true, error) if !error.is_empty() => format!("rejected the last response of the type: {error}"),
        (true, _) if progress["acked"] == true => format!("acknowledged it at {}", text(progress, "ackedAt")),
        (true, _) if progress["sent"] == true => {
            format!("was sent it at {}, and has not acknowledged it", text(progress, "sentAt"))
        }
        (true, _) => "was not sent it yet".to_owned(),
    };
    writeln!(out, "This proxy: {of_proxy}")?;
    let holders = &answer["holders"];
    let count = |field: &str| holders[field].as_u64().unwrap_or_default();
    let replicas = if list(answer, "unansweredReplicas").is_empty() { "all replicas" } else { "replicas that answer" };
    writeln!(
        out,
        "All proxies of {replicas}: {} to a resource of this name, {} were sent theirs, {} acknowledged it",
        match count("interested") {
            1 => "1 subscribes".to_owned(),
            interested => format!("{interested} subscribe"),
        },
        count("sent"),
        count("acked"),
    )?;
    for (proxy, error) in holders["rejected"].as_object().into_iter().flatten() {
        writeln!(out, "  {proxy} rejected: {}", error.as_str().unwrap_or_default())?;
    }
    Ok(())
}
