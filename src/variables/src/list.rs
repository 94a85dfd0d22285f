//! The tables as help texts and as a page of the documentation.

use std::fmt::Write as _;

use crate::{Group, State, Variable, all};

/// The variables that a program follows, as its help lists them. Those of flags are listed with their flags.
#[must_use]
pub fn help(groups: &'static [Group]) -> String {
    let mut text = String::new();
    for group in groups {
        let followed: Vec<_> = group.variables.iter().filter(|variable| variable.state == State::Followed).collect();
        if followed.is_empty() {
            continue;
        }
        // Writing to a text does not fail.
        let _ = writeln!(text, "\n{}:", group.title);
        for variable in followed {
            let _ = writeln!(text, "  {}\n          {}{}", variable.name, variable.about, default(variable));
        }
    }
    text
}

/// All variables that a program knows, one a line: name, state, values, default, meaning or reason. Tabs separate the columns.
#[must_use]
pub fn names_and_states(groups: &'static [Group]) -> String {
    let mut text = String::from("NAME\tSTATE\tVALUES\tDEFAULT\tMEANING OR REASON\n");
    for Variable { name, kind, default, state, about } in all(groups) {
        let _ = writeln!(text, "{name}\t{}\t{kind}\t{default}\t{about}", state.name());
    }
    text
}

/// The tables in Markdown.
#[must_use]
pub fn markdown(groups: &'static [Group]) -> String {
    let mut text = String::new();
    for group in groups {
        let _ = writeln!(text, "### {}\n\n| variable | values | default | state | meaning or reason |", group.title);
        text.push_str("|---|---|---|---|---|\n");
        for Variable { name, kind, default, state, about } in group.variables {
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            let _ =
                writeln!(text, "| `{name}` | {kind} | {default} | {} | {} |", state.name(), about.replace('|', "\\|"));
        }
        text.push('\n');
    }
    text
}

fn default(variable: &Variable) -> String {
    if variable.default.is_empty() { String::new() } else { format!(" [default: {}]", variable.default) }
}
