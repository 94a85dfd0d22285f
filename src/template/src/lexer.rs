//! Splits the source of a template into texts and tokens.

use super::TemplateError;

/// A token with its first byte in the source.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) kind: TokenKind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum TokenKind {
    /// Text outside of actions.
    Text(String),
    Open,
    Close,
    LeftParenthesis,
    RightParenthesis,
    Pipe,
    Comma,
    Declare,
    Assign,
    Space,
    Dot,
    /// `.Name`
    Field(String),
    /// `$name`, or `$`.
    Variable(String),
    /// A name of a function, a keyword, or `true`, `false`, `nil`.
    Name(String),
    Number(String),
    String(String),
    Character(char),
}

const OPEN: &str = "{{";
const CLOSE: &str = "}}";

/// The tokens of `source`.
pub(super) fn tokens(name: &str, source: &str) -> Result<Vec<Token>, TemplateError> {
    let mut lexer = Lexer { name, source, position: 0, tokens: Vec::new() };
    lexer.run()?;
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    name: &'s str,
    source: &'s str,
    position: usize,
    tokens: Vec<Token>,
}

fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n')
}

fn is_name(character: char) -> bool {
    character == '_' || character.is_alphanumeric()
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.position..]
    }

    fn error(&self, reason: impl Into<String>) -> TemplateError {
        TemplateError::at(self.name, self.source, self.position, reason)
    }

    fn push(&mut self, length: usize, kind: TokenKind) {
        let start = self.position;
        self.position += length;
        self.tokens.push(Token { start, end: self.position, kind });
    }

    fn run(&mut self) -> Result<(), TemplateError> {
        let mut trims = false;
        while self.position < self.source.len() {
            let length = self.rest().find(OPEN).unwrap_or(self.rest().len());
            let mut text = &self.rest()[..length];
            let after = &self.rest()[length..];
            if trims {
                text = text.trim_start_matches(is_space);
            }
            let marker = after.strip_prefix(OPEN).is_some_and(has_left_marker);
            if marker {
                text = text.trim_end_matches(is_space);
            }
            let text = text.to_owned();
            if text.is_empty() {
                self.position += length;
            } else {
                self.push(length, TokenKind::Text(text));
            }
            if after.is_empty() {
                return Ok(());
            }
            trims = self.action(if marker { 2 } else { 0 })?;
        }
        Ok(())
    }

    /// Reads an action. Returns whether it trims the text behind it.
    fn action(&mut self, marker: usize) -> Result<bool, TemplateError> {
        let inside = &self.rest()[OPEN.len() + marker..];
        if inside.starts_with("/*") {
            self.position += OPEN.len() + marker;
            return self.comment();
        }
        self.push(OPEN.len(), TokenKind::Open);
        self.position += marker;
        loop {
            let rest = self.rest();
            if rest.is_empty() {
                return Err(self.error("unclosed action"));
            }
            if let Some(marked) = rest.strip_prefix(is_space).and_then(|rest| rest.strip_prefix('-'))
                && marked.starts_with(CLOSE)
            {
                self.position += 2;
                self.push(CLOSE.len(), TokenKind::Close);
                return Ok(true);
            }
            if rest.starts_with(CLOSE) {
                self.push(CLOSE.len(), TokenKind::Close);
                return Ok(false);
            }
            self.token()?;
        }
    }

    fn comment(&mut self) -> Result<bool, TemplateError> {
        let Some(length) = self.rest().find("*/") else { return Err(self.error("unclosed comment")) };
        self.position += length + 2;
        let rest = self.rest();
        let trimmed = rest.strip_prefix(is_space).and_then(|rest| rest.strip_prefix('-'));
        if trimmed.is_some_and(|rest| rest.starts_with(CLOSE)) {
            self.position += 2 + CLOSE.len();
            return Ok(true);
        }
        if rest.starts_with(CLOSE) {
            self.position += CLOSE.len();
            return Ok(false);
        }
        Err(self.error("comment ends before closing delimiter"))
    }

    fn token(&mut self) -> Result<(), TemplateError> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(()) };
        let second = rest[first.len_utf8()..].chars().next().unwrap_or(' ');
        match first {
            c if is_space(c) => {
                // The space before a trim marker belongs to the marker.
                let spaces = rest.len() - rest.trim_start_matches(is_space).len();
                let marked = rest[spaces..].strip_prefix('-').is_some_and(|rest| rest.starts_with(CLOSE));
                let length = if marked { spaces - 1 } else { spaces };
                if length > 0 {
                    self.push(length, TokenKind::Space);
                }
            }
            '(' => self.push(1, TokenKind::LeftParenthesis),
            ')' => self.push(1, TokenKind::RightParenthesis),
            '|' => self.push(1, TokenKind::Pipe),
            ',' => self.push(1, TokenKind::Comma),
            ':' if second == '=' => self.push(2, TokenKind::Declare),
            '=' => self.push(1, TokenKind::Assign),
            '"' => self.string()?,
            '`' => {
                let Some(length) = rest[1..].find('`') else {
                    return Err(self.error("unterminated raw quoted string"));
                };
                self.push(length + 2, TokenKind::String(rest[1..=length].to_owned()));
            }
            '\'' => self.character()?,
            '.' if !second.is_ascii_digit() => {
                let length = name_length(&rest[1..]);
                let kind = match length {
                    0 => TokenKind::Dot,
                    _ => TokenKind::Field(rest[1..=length].to_owned()),
                };
                self.push(length + 1, kind);
                self.end_of_word()?;
            }
            '$' => {
                let length = name_length(&rest[1..]) + 1;
                self.push(length, TokenKind::Variable(rest[..length].to_owned()));
                self.end_of_word()?;
            }
            c if c.is_ascii_digit() || c == '.' || ("+-".contains(c) && (second.is_ascii_digit() || second == '.')) => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
                let digits = &rest[1..];
                let mut length = 1;
                for c in digits.chars() {
                    let exponent = "+-".contains(c) && rest[..length].ends_with(['e', 'E']);
                    if !is_part(c) && !exponent {
                        break;
                    }
                    length += 1;
                }
                self.push(length, TokenKind::Number(rest[..length].to_owned()));
            }
            c if is_name(c) => {
                let length = name_length(rest);
                self.push(length, TokenKind::Name(rest[..length].to_owned()));
                self.end_of_word()?;
            }
            other => return Err(self.error(format!("unexpected {other:?} in an action"))),
        }
        Ok(())
    }

    fn end_of_word(&self) -> Result<(), TemplateError> {
        match self.rest().chars().next() {
            Some(c) if !is_space(c) && !".,|:=()}".contains(c) => Err(self.error(format!("bad character {c:?}"))),
            _ => Ok(()),
        }
    }

    fn string(&mut self) -> Result<(), TemplateError> {
        let mut out = String::new();
        let rest = self.rest();
        let mut characters = rest.char_indices().skip(1);
        while let Some((index, character)) = characters.next() {
            match character {
                '"' => {
                    self.push(index + 1, TokenKind::String(out));
                    return Ok(());
                }
                '\n' => break,
                '\\' => {
                    let escaped = escape(&mut characters).ok_or_else(|| self.error("invalid escape sequence"))?;
                    out.push(escaped);
                }
                other => out.push(other),
            }
        }
        Err(self.error("unterminated quoted string"))
    }

    fn character(&mut self) -> Result<(), TemplateError> {
        let rest = self.rest();
        let mut characters = rest.char_indices().skip(1);
        let character = match characters.next() {
            Some((_, '\\')) => escape(&mut characters),
            Some((_, other)) if other != '\'' => Some(other),
            _ => None,
        };
        match (character, characters.next()) {
            (Some(character), Some((index, '\''))) => {
                self.push(index + 1, TokenKind::Character(character));
                Ok(())
            }
            _ => Err(self.error("malformed character constant")),
        }
    }
}

/// Whether a trim marker follows the opening delimiter.
fn has_left_marker(inside: &str) -> bool {
    inside.strip_prefix('-').is_some_and(|rest| rest.starts_with(is_space))
}

fn name_length(text: &str) -> usize {
    text.len() - text.trim_start_matches(is_name).len()
}

/// The character of an escape sequence, behind its backslash.
fn escape(characters: &mut impl Iterator<Item = (usize, char)>) -> Option<char> {
    let (_, kind) = characters.next()?;
    let mut number = |digits: usize, base: u32, first: u32| {
        let mut out = first;
        for _ in 0..digits {
            out = out * base + characters.next()?.1.to_digit(base)?;
        }
        char::from_u32(out)
    };
    match kind {
        'n' => Some('\n'),
        't' => Some('\t'),
        'r' => Some('\r'),
        'a' => Some('\u{7}'),
        'b' => Some('\u{8}'),
        'f' => Some('\u{c}'),
        'v' => Some('\u{b}'),
        '\\' | '"' | '\'' => Some(kind),
        'x' => number(2, 16, 0),
        'u' => number(4, 16, 0),
        'U' => number(8, 16, 0),
        digit => {
            let first = digit.to_digit(8)?;
            number(2, 8, first)
        }
    }
}
