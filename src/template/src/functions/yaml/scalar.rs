//! How a text is written: plain, in quotes, or as a literal block.

use std::fmt::Write;
use std::sync::LazyLock;

use regex::Regex;

/// A text is folded at the first space behind this column.
const BEST_WIDTH: usize = 80;

/// Texts that are not texts without quotes.
const RESERVED: [&str; 39] = [
    "", "~", "null", "Null", "NULL", "<<", "y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE",
    "n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE", ".nan", ".NaN", ".NAN", ".inf", ".Inf",
    ".INF", "+.inf", "+.Inf", "-.inf", "-.Inf", "-.INF",
];

/// Numbers, dates and times of YAML 1.1. Underscores in numbers are removed before.
static NUMBER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let alternatives = [
        r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)",
        r"[-+]?[0-9]*\.?[0-9]+([eE][-+][0-9]+)?",
        r"\.[0-9]+([eE][-+]?[0-9]+)?",
        r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?",
        r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(\.[0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})?)?",
    ];
    Regex::new(&format!("^({})$", alternatives.join("|"))).ok()
});

/// Where a text is written.
#[derive(Clone, Copy)]
pub(super) enum Context {
    /// A key of a mapping, on one line.
    Key,
    /// A value, whose further lines have this indentation.
    Value { indent: usize },
}

/// What the characters of a text permit.
#[derive(Default)]
struct Analysis {
    allows_plain: bool,
    allows_single_quotes: bool,
    allows_block: bool,
    has_line_breaks: bool,
}

/// Writes a text. A literal block whose text ends with a line break ends with it, too.
pub(super) fn write_scalar(out: &mut String, text: &str, context: Context) {
    let analysis = analyse(text);
    let Context::Value { indent } = context else {
        let plain = analysis.allows_plain && !is_other_type(text);
        match (plain, analysis.allows_single_quotes && !is_other_type(text) && !analysis.has_line_breaks) {
            (true, _) => out.push_str(text),
            (false, true) => write_single(out, text, None),
            (false, false) => write_double(out, text, None),
        }
        return;
    };
    if text.contains('\n') {
        match analysis.allows_block {
            true => write_literal(out, text, indent),
            false => write_double(out, text, Some(indent)),
        }
    } else if is_other_type(text) {
        write_double(out, text, Some(indent));
    } else if analysis.allows_plain {
        write_folded(out, text, Some(indent), |out, character| out.push(character));
    } else if analysis.allows_single_quotes {
        write_single(out, text, Some(indent));
    } else {
        write_double(out, text, Some(indent));
    }
}

/// Whether a reader takes the text for another value than a text.
fn is_other_type(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    RESERVED.contains(&text) || (begins && NUMBER.as_ref().is_none_or(|number| number.is_match(&text.replace('_', ""))))
}

fn is_printable(character: char) -> bool {
    !character.is_control() && !matches!(character, '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

fn analyse(text: &str) -> Analysis {
    let characters: Vec<char> = text.chars().collect();
    let last = characters.len().saturating_sub(1);
    let (mut has_indicators, mut has_special) = (text.starts_with("---") || text.starts_with("..."), false);
    let (mut space_before_break, mut space_after_break, mut has_line_breaks) = (false, false, false);
    for (index, &character) in characters.iter().enumerate() {
        let is_followed_by_space = characters.get(index + 1).is_none_or(|next| matches!(next, ' ' | '\t'));
        let previous = index.checked_sub(1).map(|index| characters[index]);
        has_indicators |= match (index, character) {
            (0, c) if "#,[]{}&*!|>'\"%@`".contains(c) => true,
            (0, '?' | '-') | (_, ':') => is_followed_by_space,
            (_, '#') => previous.is_some_and(|previous| previous.is_whitespace()),
            _ => false,
        };
        match character {
            '\n' => {
                has_line_breaks = true;
                space_before_break |= previous == Some(' ');
            }
            ' ' => space_after_break |= previous == Some('\n'),
            other => has_special |= !is_printable(other),
        }
    }
    let ends = [characters.first(), characters.get(last)];
    let has_space_at_end = ends.iter().flatten().any(|character| matches!(character, ' ' | '\n'));
    let is_never_plain = space_before_break || has_special;
    Analysis {
        allows_plain: !(has_indicators || has_space_at_end || space_after_break || is_never_plain || has_line_breaks),
        allows_single_quotes: !(space_after_break || is_never_plain),
        allows_block: !(characters.get(last) == Some(&' ') || is_never_plain),
        has_line_breaks,
    }
}

/// The number of characters in the last line.
fn column(out: &str) -> usize {
    out[out.rfind('\n').map_or(0, |index| index + 1)..].chars().count()
}

/// Writes the characters of a text of one line, and breaks the line at a single space behind [`BEST_WIDTH`].
fn write_folded(out: &mut String, text: &str, indent: Option<usize>, write: impl Fn(&mut String, char)) {
    let characters: Vec<char> = text.chars().collect();
    for (index, &character) in characters.iter().enumerate() {
        let is_single = character == ' '
            && index > 0
            && characters[index - 1] != ' '
            && characters.get(index + 1).is_some_and(|next| *next != ' ');
        match indent {
            Some(indent) if is_single && column(out) > BEST_WIDTH => {
                out.push('\n');
                out.push_str(&" ".repeat(indent));
            }
            _ => write(out, character),
        }
    }
}

fn write_single(out: &mut String, text: &str, indent: Option<usize>) {
    out.push('\'');
    write_folded(out, text, indent, |out, character| match character {
        '\'' => out.push_str("''"),
        other => out.push(other),
    });
    out.push('\'');
}

fn write_double(out: &mut String, text: &str, indent: Option<usize>) {
    out.push('"');
    write_folded(out, text, indent, |out, character| match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\t' => out.push_str("\\t"),
        '\r' => out.push_str("\\r"),
        '\0' => out.push_str("\\0"),
        '\u{1b}' => out.push_str("\\e"),
        '\u{85}' => out.push_str("\\N"),
        c if is_printable(c) => out.push(c),
        c if u32::from(c) <= 0xff => write!(out, "\\x{:02X}", u32::from(c)).unwrap_or_default(),
        c => write!(out, "\\u{:04X}", u32::from(c)).unwrap_or_default(),
    });
    out.push('"');
}

fn write_literal(out: &mut String, text: &str, indent: usize) {
    out.push('|');
    if text.starts_with([' ', '\n']) {
        out.push_str(&super::INDENT.to_string());
    }
    if !text.ends_with('\n') {
        out.push('-');
    } else if text == "\n" || text.ends_with("\n\n") {
        out.push('+');
    }
    out.push('\n');
    for line in text.split_inclusive('\n') {
        if line != "\n" {
            out.push_str(&" ".repeat(indent));
        }
        out.push_str(line);
    }
}
