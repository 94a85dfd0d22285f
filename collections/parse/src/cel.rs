//! Syntax check for CEL, the language of access log filters. Envoy checks names and types, because it knows its attributes.
//!
//! The `cel` crate (0.15) is not used. Measured with its parser on a thread with a stack of 2 MiB: `a+a+…` of 20 kB, and 1,000
//! nested parentheses in a build without optimization, overflow the stack and abort the process. Any author of a Telemetry
//! could stop the control plane with such an expression. A usual filter takes 58 µs, and the crate adds 12 dependencies.

/// Maximum nesting.
const MAX_NESTING: usize = 120;

/// Reserved words, which are not identifiers.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];
/// Functions that the parsers of CEL expand to loops, with their numbers of arguments. The first argument names the variable.
const LOOPS: [(&str, &[usize]); 5] =
    [("all", &[2]), ("exists", &[2]), ("exists_one", &[2]), ("filter", &[2]), ("map", &[2, 3])];
const KEYWORDS: [&str; 4] = ["true", "false", "null", "in"];

/// Binary operators by precedence, lowest first.
const LEVELS: [&[&str]; 5] =
    [&["||"], &["&&"], &["<", "<=", ">=", ">", "==", "!=", "in"], &["+", "-"], &["*", "/", "%"]];

/// Why an expression is not valid; displayed as a lower-case fragment.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum CelError {
    /// The text does not begin with a token.
    #[error("unexpected `{0}`")]
    Unexpected(String),
    /// Another token than the expected one.
    #[error("expected {expected} {place}")]
    Expected { expected: String, place: String },
    #[error("expected an argument after `,`")]
    MissingArgument,
    #[error("`{0}` is a reserved word")]
    ReservedWord(String),
    #[error("nested deeper than {MAX_NESTING} levels")]
    Nesting,
    /// The parsers of CEL expand `has(a.b)` to a presence test, for which the argument must be a field selection.
    #[error("expected a field such as `a.b` as the argument of `has`; write `'key' in a` for a key of a map")]
    HasArgument,
    /// The parsers of CEL expand these functions to loops over a variable.
    #[error("expected the name of a variable as the first argument of `{0}`")]
    LoopVariable(String),
}

/// Checks the syntax of an expression.
///
/// # Errors
/// The position and what is expected there.
pub(crate) fn check_cel(text: &str) -> Result<(), CelError> {
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0 };
    parser.expression(0)?;
    parser.end()
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Token<'a> {
    Identifier(&'a str),
    Literal,
    Symbol(&'a str),
}

fn tokens(text: &str) -> Result<Vec<Token<'_>>, CelError> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n', '\u{c}']);
        if rest.is_empty() {
            return Ok(tokens);
        }
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
            continue;
        }
        let (token, length) = token(rest).ok_or_else(|| {
            let shown: String = rest.chars().take(20).collect();
            CelError::Unexpected(shown)
        })?;
        tokens.push(token);
        rest = &rest[length..];
    }
}

/// The first token and its length in bytes.
fn token(text: &str) -> Option<(Token<'_>, usize)> {
    if let Some(length) = string(text) {
        return Some((Token::Literal, length));
    }
    let first = text.chars().next()?;
    if first.is_ascii_alphabetic() || first == '_' {
        let length = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        return Some((Token::Identifier(&text[..length]), length));
    }
    let fraction = first == '.' && text[1..].starts_with(|c: char| c.is_ascii_digit());
    if first.is_ascii_digit() || fraction {
        return Some((Token::Literal, number(text)));
    }
    if first == '`' {
        let end = text[1..].find('`')?;
        return Some((Token::Identifier(&text[..end + 2]), end + 2));
    }
    let symbols = ["&&", "||", "<=", ">=", "==", "!="];
    let double = symbols.iter().find(|symbol| text.starts_with(**symbol)).map(|symbol| symbol.len());
    let length = double.or_else(|| "<>+-*/%!.,:?()[]{}".contains(first).then_some(1))?;
    Some((Token::Symbol(&text[..length]), length))
}

/// The length of the string or byte literal that a text starts with.
fn string(text: &str) -> Option<usize> {
    let prefix = text.find(|c: char| !"rRbB".contains(c)).filter(|length| *length <= 2)?;
    let raw = text[..prefix].contains(['r', 'R']);
    let body = &text[prefix..];
    let quote = body.chars().next().filter(|c| "'\"".contains(*c))?;
    let triple = quote.to_string().repeat(3);
    let close = if body.starts_with(&triple) { triple } else { quote.to_string() };
    let mut at = close.len();
    while at < body.len() {
        if body[at..].starts_with(&close) {
            return Some(prefix + at + close.len());
        }
        let c = body[at..].chars().next()?;
        if c == '\n' && close.len() == 1 {
            return None;
        }
        at += c.len_utf8();
        if c == '\\' && !raw {
            at += body[at..].chars().next()?.len_utf8();
        }
    }
    None
}

fn number(text: &str) -> usize {
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    if let Some(hex) = text.strip_prefix("0x") {
        let length = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
        return 2 + length + usize::from(hex[length..].starts_with(['u', 'U']));
    }
    let mut length = digits(text);
    let fraction = text[length..].strip_prefix('.').map_or(0, digits);
    if fraction > 0 {
        length += 1 + fraction;
    }
    let exponent = text[length..].strip_prefix(['e', 'E']).map(|rest| {
        let sign = usize::from(rest.starts_with(['+', '-']));
        (sign, digits(&rest[sign..]))
    });
    match exponent {
        Some((sign, count)) if count > 0 => length + 1 + sign + count,
        _ if fraction == 0 && text[length..].starts_with(['u', 'U']) => length + 1,
        _ => length,
    }
}

/// The form of an expression, as far as an argument must have it.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Form {
    /// A name.
    Name,
    /// `OPERAND.FIELD`, or the presence test of one.
    Selection,
    Other,
}

struct Parser<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a Token<'a>> {
        self.tokens.get(self.at)
    }

    fn is(&self, symbol: &str) -> bool {
        matches!(self.peek(), Some(Token::Symbol(found)) if *found == symbol)
    }

    fn take(&mut self, symbol: &str) -> bool {
        let found = self.is(symbol);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: &str) -> Result<(), CelError> {
        if self.take(symbol) { Ok(()) } else { Err(self.expected(&format!("`{symbol}`"))) }
    }

    fn expected(&self, expected: &str) -> CelError {
        CelError::Expected { expected: expected.to_owned(), place: self.place() }
    }

    fn place(&self) -> String {
        match self.peek() {
            Some(Token::Identifier(text) | Token::Symbol(text)) => format!("before `{text}`"),
            Some(Token::Literal) => "before a literal".to_owned(),
            None => "at the end".to_owned(),
        }
    }

    fn end(&self) -> Result<(), CelError> {
        if self.peek().is_none() { Ok(()) } else { Err(self.expected("the end of the expression")) }
    }

    fn expression(&mut self, depth: usize) -> Result<Form, CelError> {
        if depth > MAX_NESTING {
            return Err(CelError::Nesting);
        }
        let form = self.binary(0, depth)?;
        if !self.take("?") {
            return Ok(form);
        }
        self.binary(0, depth)?;
        self.expect(":")?;
        self.expression(depth + 1)?;
        Ok(Form::Other)
    }

    fn binary(&mut self, level: usize, depth: usize) -> Result<Form, CelError> {
        let Some(operators) = LEVELS.get(level) else { return self.unary(depth) };
        let mut form = self.binary(level + 1, depth)?;
        while let Some(Token::Symbol(text) | Token::Identifier(text)) = self.peek()
            && operators.contains(text)
        {
            self.at += 1;
            self.binary(level + 1, depth)?;
            form = Form::Other;
        }
        Ok(form)
    }

    fn unary(&mut self, depth: usize) -> Result<Form, CelError> {
        // One of the two unary operators, repeated any number of times. Parsers of CEL drop an even number of them.
        let sign = ["!", "-"].into_iter().find(|sign| self.is(sign));
        let mut is_dropped = true;
        while sign.is_some_and(|sign| self.take(sign)) {
            is_dropped = !is_dropped;
        }
        let mut form = self.primary(depth)?;
        loop {
            if self.take(".") {
                let is_optional = self.take("?");
                let name = self.selector()?;
                form = if is_optional { Form::Other } else { Form::Selection };
                if self.take("(") {
                    let arguments = self.list(")", depth, Self::expression)?;
                    let is_loop =
                        LOOPS.iter().any(|(known, counts)| *known == name && counts.contains(&arguments.len()));
                    if is_loop && arguments.first() != Some(&Form::Name) {
                        return Err(CelError::LoopVariable(name.to_owned()));
                    }
                    form = Form::Other;
                }
            } else if self.take("[") {
                self.take("?");
                self.expression(depth + 1)?;
                self.expect("]")?;
                form = Form::Other;
            } else {
                return Ok(if is_dropped { form } else { Form::Other });
            }
        }
    }

    fn selector(&mut self) -> Result<&'a str, CelError> {
        match self.peek() {
            Some(Token::Identifier(name)) if !KEYWORDS.contains(name) => {
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.expected("a name")),
        }
    }

    /// Parses comma-separated elements up to the closing bracket. The opening one is already consumed.
    fn list<T>(
        &mut self,
        close: &str,
        depth: usize,
        element: fn(&mut Self, usize) -> Result<T, CelError>,
    ) -> Result<Vec<T>, CelError> {
        let mut elements = Vec::new();
        while !self.take(close) {
            elements.push(element(self, depth + 1)?);
            if !self.take(",") {
                self.expect(close)?;
                break;
            }
            if close == ")" && self.is(close) {
                return Err(CelError::MissingArgument);
            }
        }
        Ok(elements)
    }

    fn entry(&mut self, depth: usize) -> Result<(), CelError> {
        self.take("?");
        self.expression(depth)?;
        self.expect(":")?;
        self.expression(depth)?;
        Ok(())
    }

    fn primary(&mut self, depth: usize) -> Result<Form, CelError> {
        if self.take("(") {
            let form = self.expression(depth + 1)?;
            self.expect(")")?;
            return Ok(form);
        }
        if self.take("[") {
            self.list("]", depth, Self::expression)?;
            return Ok(Form::Other);
        }
        if self.take("{") {
            self.list("}", depth, Self::entry)?;
            return Ok(Form::Other);
        }
        let rooted = self.take(".");
        match self.peek() {
            Some(Token::Literal) if !rooted => {
                self.at += 1;
                Ok(Form::Other)
            }
            Some(Token::Identifier("true" | "false" | "null")) if !rooted => {
                self.at += 1;
                Ok(Form::Other)
            }
            Some(Token::Identifier(name)) if RESERVED.contains(name) => Err(CelError::ReservedWord((*name).to_owned())),
            Some(Token::Identifier(name)) if *name != "in" => {
                self.at += 1;
                if self.message(depth)? {
                    return Ok(Form::Other);
                }
                if !self.take("(") {
                    return Ok(if rooted { Form::Other } else { Form::Name });
                }
                let arguments = self.list(")", depth, Self::expression)?;
                match arguments.as_slice() {
                    [argument] if *name == "has" && !rooted => match argument {
                        Form::Selection => Ok(Form::Selection),
                        Form::Name | Form::Other => Err(CelError::HasArgument),
                    },
                    _ => Ok(Form::Other),
                }
            }
            _ => Err(self.expected("an operand")),
        }
    }

    /// Parses a message literal `name.of.type{field: value}`, whose first name is already consumed. Returns false and consumes
    /// nothing if it is not one.
    fn message(&mut self, depth: usize) -> Result<bool, CelError> {
        let mut at = self.at;
        while let (Some(Token::Symbol(".")), Some(Token::Identifier(_))) =
            (self.tokens.get(at), self.tokens.get(at + 1))
        {
            at += 2;
        }
        if self.tokens.get(at) != Some(&Token::Symbol("{")) {
            return Ok(false);
        }
        self.at = at + 1;
        self.list("}", depth, Self::entry)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
