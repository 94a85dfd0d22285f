//! Colours of the terminal, for all subcommands: none if the standard output is no terminal, if NO_COLOR is set, or if TERM is dumb.

use std::io::{self, StdoutLock};

use anstream::AutoStream;

/// A colour of text. Subcommands write it always: [`stdout`] removes it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Colour {
    Name,
    Good,
    Warning,
    Bad,
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
    fn colours_take_no_space() {
        assert_eq!(width(&paint(Colour::Bad, "né")), 2);
        assert_eq!(plain(&paint(Colour::Good, "SYNCED")), "SYNCED");
    }
}
