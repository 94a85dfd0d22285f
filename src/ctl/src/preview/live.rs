//! `preview` of a running control plane: it gets the objects, and answers what applying or deleting them would change.

use std::io::{self, Write};

use serde_json::Value;

use super::live_table::table;
use crate::answer_output::{fail, list, print, text};
use crate::connect::connect;
use crate::files;
use crate::preview_args::PreviewArgs;
use crate::replicas::sum_previews;
use crate::{EXIT_FINDINGS, EXIT_OK, EXIT_UNREADABLE};

/// Prints the answer and returns the exit code.
pub(super) fn run(args: &PreviewArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let mut failures = Vec::new();
    let sources: Vec<_> = args.filenames.iter().flat_map(|path| files::read(path, &mut failures)).collect();
    for failure in &failures {
        writeln!(errors, "sluicectl: {failure}")?;
    }
    if !failures.is_empty() {
        return Ok(EXIT_UNREADABLE);
    }
    let body = Body::of(sources.iter().map(|source| (source.name.as_str(), source.text.as_str())));
    let parameters = [("delete", if args.delete { "true" } else { "" })];
    let answers =
        connect(&args.server).and_then(|server| Ok(server.post_all("preview", &parameters, &body.text)?.named()));
    let (mut answer, missing) = match answers {
        Ok((answers, missing)) => (sum_previews(answers, &missing).unwrap_or_default(), missing),
        Err(error) => return fail(&error, EXIT_FINDINGS, errors),
    };
    body.locate(&mut answer);
    select(args, &mut answer);
    missing.report(errors)?;
    print(args.output, &answer, out, table)?;
    let is_error = |finding: &Value| text(finding, "severity") == "error";
    let has_errors = list(&answer, "findings").iter().any(is_error);
    Ok(missing.exit_code(if has_errors { EXIT_FINDINGS } else { EXIT_OK }))
}

/// All files as one text, and where each begins.
struct Body {
    text: String,
    /// Name of each file, and the number of lines before its first one.
    files: Vec<(String, usize)>,
}

impl Body {
    fn of<'a>(sources: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut body = Self { text: String::new(), files: Vec::new() };
        let mut lines = 0;
        for (name, text) in sources {
            body.text.push_str("---\n");
            lines += 1;
            body.files.push((name.to_owned(), lines));
            body.text.push_str(text);
            if !text.ends_with('\n') {
                body.text.push('\n');
            }
            lines += text.lines().count().max(1);
        }
        body
    }

    /// Replaces lines of the text by lines of files.
    fn locate(&self, answer: &mut Value) {
        for list in ["objects", "findings"] {
            for entry in answer[list].as_array_mut().into_iter().flatten() {
                let line = entry["line"].as_u64().and_then(|line| usize::try_from(line).ok());
                let Some((file, line)) = line.and_then(|line| self.file_of(line)) else { continue };
                entry["file"] = file.into();
                entry["line"] = line.into();
            }
        }
    }

    fn file_of(&self, line: usize) -> Option<(&str, usize)> {
        let (file, before) = self.files.iter().rev().find(|(_, before)| *before < line)?;
        Some((file, line - before))
    }
}

/// Leaves out the resources that the flags do not select.
fn select(args: &PreviewArgs, answer: &mut Value) {
    let types: Vec<&str> = args.resource_types.iter().map(|kind| kind.short_name()).collect();
    let is_selected = |change: &Value| {
        (types.is_empty() || types.contains(&text(change, "type")))
            && args.name.as_ref().is_none_or(|name| name == text(change, "name"))
    };
    if let Some(changes) = answer["changes"].as_array_mut() {
        changes.retain(is_selected);
    }
    if let Some(resources) = answer["resources"].as_array_mut() {
        resources.retain(|summary| types.is_empty() || types.contains(&text(summary, "type")));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_of_the_body_are_those_of_the_files() {
        let body =
            Body::of([("a.yaml", "kind: A\nspec: 1\n"), ("b.yaml", "kind: B"), ("c.yaml", "kind: C\n")].into_iter());
        assert_eq!(body.text, "---\nkind: A\nspec: 1\n---\nkind: B\n---\nkind: C\n");
        let mut answer = json!({"objects": [{"line": 2}, {"line": 5}], "findings": [{"line": 7}, {"object": "x"}]});
        body.locate(&mut answer);
        let expect = json!({
            "objects": [{"line": 1, "file": "a.yaml"}, {"line": 1, "file": "b.yaml"}],
            "findings": [{"line": 1, "file": "c.yaml"}, {"object": "x"}],
        });
        assert_eq!(answer, expect);
    }
}
