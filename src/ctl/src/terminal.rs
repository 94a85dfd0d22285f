//! The terminal, for all subcommands. Its colours: none if the standard output is no terminal, if NO_COLOR is set, or if TERM is dumb. The
//! length of its lines: unlimited if the standard output is no terminal.

use std::borrow::Cow;
use std::io::{self, StdoutLock};
use std::sync::OnceLock;

use anstream::AutoStream;

/// A colour of text. Subcommands write it always: [`stdout`] removes it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Colour {
    Name,
    Good,
    Warning,
    Bad,
}

/// What ends a text that is cut.
const CUT_MARK: char = '…';
/// The character that begins a colour. `m` ends it.
const ESCAPE: char = '\x1b';

/// The length of the lines of the standard output, if it is a terminal. It is set once, by `main`.
static LINE_WIDTH: OnceLock<usize> = OnceLock::new();

/// Fits tables into the lines of the terminal, if the standard output is one.
pub(crate) fn fit_tables() {
    if let Some((terminal_size::Width(columns), _)) = terminal_size::terminal_size_of(io::stdout()) {
        let _ = LINE_WIDTH.set(columns.into());
    }
}

/// Number of characters of a line; `None` for no limit.
pub(crate) fn line_width() -> Option<usize> {
    LINE_WIDTH.get().copied()
}

/// The beginning of a text that takes this number of characters at most, with a mark if it is cut. Colours stay.
pub(crate) fn cut(text: &str, max: usize) -> Cow<'_, str> {
    if width(text) <= max {
        return Cow::Borrowed(text);
    }
    let (mut kept, mut room) = (String::with_capacity(text.len()), max.saturating_sub(1));
    let (mut is_colour, mut is_marked) = (false, false);
    for char in text.chars() {
        if is_colour || char == ESCAPE {
            kept.push(char);
            is_colour = char != 'm';
        } else if room > 0 {
            kept.push(char);
            room -= 1;
        } else if !is_marked {
            kept.push(CUT_MARK);
            is_marked = true;
        }
    }
    Cow::Owned(kept)
}

/// The standard output, without colours if the terminal has none.
pub(crate) fn stdout() -> AutoStream<StdoutLock<'static>> {
    AutoStream::auto(io::stdout().lock())
}

/// The standard output, with colours also if it is no terminal.
pub(crate) fn stdout_with_colours() -> AutoStream<StdoutLock<'static>> {
    AutoStream::always_ansi(io::stdout().lock())
}

/// A text in a colour.
pub(crate) fn paint(colour: Colour, text: &str) -> String {
    let code = match colour {
        Colour::Name => 1,
        Colour::Good => 32,
        Colour::Warning => 33,
        Colour::Bad => 31,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Number of characters that a text takes on the terminal.
pub(crate) fn width(text: &str) -> usize {
    anstream::adapter::strip_str(text).map(|part| part.chars().count()).sum()
}

/// A text without colours.
#[cfg(test)]
pub(crate) fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_with_a_mark_and_keeps_its_colours() {
        assert_eq!(cut("SYNCED", 6), "SYNCED");
        assert_eq!(cut("SYNCED", 5), "SYNC…");
        let painted = paint(Colour::Good, "SYNCED");
        assert_eq!(cut(&painted, 6), painted);
        assert_eq!(cut(&painted, 3), paint(Colour::Good, "SY…"));
    }

    #[test]
    fn colours_take_no_space() {
        assert_eq!(width(&paint(Colour::Bad, "né")), 2);
        assert_eq!(plain(&paint(Colour::Good, "SYNCED")), "SYNCED");
    }
}
