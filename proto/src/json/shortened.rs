//! Text of bounded length, for messages that quote what a user or a client wrote.

use std::fmt::{self, Write as _};

/// Marks where a text is shortened.
const ELLIPSIS: char = '…';

/// A text with at most a given number of bytes. Of a longer one it keeps the beginning and the end, which are what a path
/// and a message need, with `…` between them.
#[derive(Debug)]
pub struct Shortened {
    head: String,
    head_bytes: usize,
    tail: String,
    tail_bytes: usize,
    is_shortened: bool,
}

impl Shortened {
    /// An empty text for at most `max_bytes`.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        let kept = max_bytes.saturating_sub(ELLIPSIS.len_utf8());
        let tail_bytes = kept / 2;
        let (head, tail) = (String::new(), String::new());
        Self { head, head_bytes: max_bytes - tail_bytes, tail, tail_bytes, is_shortened: false }
    }

    /// `text` with at most `max_bytes`.
    #[must_use]
    pub fn of(text: &(impl fmt::Display + ?Sized), max_bytes: usize) -> String {
        let mut shortened = Self::new(max_bytes);
        // Fails only if `text` does; what it wrote until then is kept.
        let _ = write!(shortened, "{text}");
        shortened.finish()
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        let Self { mut head, head_bytes, mut tail, tail_bytes, is_shortened } = self;
        if is_shortened {
            // The ellipsis has its place in the head.
            head.truncate(head.floor_char_boundary(head_bytes - ELLIPSIS.len_utf8()));
            head.push(ELLIPSIS);
            tail.drain(..tail.ceil_char_boundary(tail.len().saturating_sub(tail_bytes)));
        }
        head + &tail
    }
}

impl fmt::Write for Shortened {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        if self.tail.is_empty() {
            let room = self.head_bytes - self.head.len();
            let (head, after) = rest.split_at(rest.floor_char_boundary(room));
            self.head.push_str(head);
            rest = after;
        }
        if rest.len() > self.tail_bytes {
            self.tail.clear();
            self.is_shortened = true;
            rest = &rest[rest.floor_char_boundary(rest.len() - self.tail_bytes)..];
        }
        self.tail.push_str(rest);
        if self.tail.len() > self.tail_bytes {
            self.is_shortened = true;
            // Twice the length, so that the removal costs nothing on average.
            if self.tail.len() > 2 * self.tail_bytes {
                self.tail.drain(..self.tail.ceil_char_boundary(self.tail.len() - self.tail_bytes));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Shortened;

    #[test]
    fn short_text_is_kept_and_long_text_keeps_both_ends() {
        for text in ["", "a", "12345678", "é", "éééé"] {
            assert_eq!(Shortened::of(text, 8), text);
        }
        assert_eq!(Shortened::of("123456789", 8), "123…89");
        assert_eq!(Shortened::of(&format_args!("{}{}{}", "ab", "x".repeat(10_000), "yz"), 8), "abx…yz");
        for bytes in 8..40 {
            let long = Shortened::of(&"é€x".repeat(1000), bytes);
            assert!(long.len() <= bytes && long.contains('…'), "{bytes}: {long}");
        }
    }

    #[test]
    fn text_that_is_written_in_parts_is_that_of_the_whole() {
        use std::fmt::Write as _;
        let text: String = (0..200).map(|n| format!("[{n}]é")).collect();
        for bytes in [8, 64, 333, 5000] {
            let mut parts = Shortened::new(bytes);
            text.chars().for_each(|c| parts.write_char(c).expect("no error"));
            assert_eq!(parts.finish(), Shortened::of(&text, bytes));
        }
    }
}
