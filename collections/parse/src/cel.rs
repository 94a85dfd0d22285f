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
const KEYWORDS: [&str; 4] = ["true", "false", "null", "in"];

/// Binary operators by precedence, lowest first.
const LEVELS: [&[&str]; 5] =
    [&["||"], &["&&"], &["<", "<=", ">=", ">", "==", "!=", "in"], &["+", "-"], &["*", "/", "%"]];

/// Checks the syntax of an expression.
///
/// # Errors
/// The position and what is expected there, a lower-case fragment.
pub(crate) fn check_cel(text: &str) -> Result<(), String> {
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

fn tokens(text: &str) -> Result<Vec<Token<'_>>, String> {
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
            format!("unexpected `{shown}`")
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

    fn expect(&mut self, symbol: &str) -> Result<(), String> {
        if self.take(symbol) { Ok(()) } else { Err(format!("expected `{symbol}` {}", self.place())) }
    }

    fn place(&self) -> String {
        match self.peek() {
            Some(Token::Identifier(text) | Token::Symbol(text)) => format!("before `{text}`"),
            Some(Token::Literal) => "before a literal".to_owned(),
            None => "at the end".to_owned(),
        }
    }

    fn end(&self) -> Result<(), String> {
        if self.peek().is_none() { Ok(()) } else { Err(format!("expected the end of the expression {}", self.place())) }
    }

    fn expression(&mut self, depth: usize) -> Result<(), String> {
        if depth > MAX_NESTING {
            return Err("nested deeper than 120 levels".to_owned());
        }
        self.binary(0, depth)?;
        if self.take("?") {
            self.binary(0, depth)?;
            self.expect(":")?;
            self.expression(depth + 1)?;
        }
        Ok(())
    }

    fn binary(&mut self, level: usize, depth: usize) -> Result<(), String> {
        let Some(operators) = LEVELS.get(level) else { return self.unary(depth) };
        self.binary(level + 1, depth)?;
        while let Some(Token::Symbol(text) | Token::Identifier(text)) = self.peek()
            && operators.contains(text)
        {
            self.at += 1;
            self.binary(level + 1, depth)?;
        }
        Ok(())
    }

    fn unary(&mut self, depth: usize) -> Result<(), String> {
        // One of the two unary operators, repeated any number of times.
        let sign = ["!", "-"].into_iter().find(|sign| self.is(sign));
        while sign.is_some_and(|sign| self.take(sign)) {}
        self.primary(depth)?;
        loop {
            if self.take(".") {
                self.take("?");
                self.selector()?;
                if self.take("(") {
                    self.list(")", depth, Self::expression)?;
                }
            } else if self.take("[") {
                self.take("?");
                self.expression(depth + 1)?;
                self.expect("]")?;
            } else {
                return Ok(());
            }
        }
    }

    fn selector(&mut self) -> Result<(), String> {
        match self.peek() {
            Some(Token::Identifier(name)) if !KEYWORDS.contains(name) => {
                self.at += 1;
                Ok(())
            }
            _ => Err(format!("expected a name {}", self.place())),
        }
    }

    /// Parses comma-separated elements up to the closing bracket. The opening one is already consumed.
    fn list(
        &mut self,
        close: &str,
        depth: usize,
        element: fn(&mut Self, usize) -> Result<(), String>,
    ) -> Result<(), String> {
        while !self.take(close) {
            element(self, depth + 1)?;
            if !self.take(",") {
                return self.expect(close);
            }
            if close == ")" && self.is(close) {
                return Err("expected an argument after `,`".to_owned());
            }
        }
        Ok(())
    }

    fn entry(&mut self, depth: usize) -> Result<(), String> {
        self.take("?");
        self.expression(depth)?;
        self.expect(":")?;
        self.expression(depth)
    }

    fn primary(&mut self, depth: usize) -> Result<(), String> {
        if self.take("(") {
            self.expression(depth + 1)?;
            return self.expect(")");
        }
        if self.take("[") {
            return self.list("]", depth, Self::expression);
        }
        if self.take("{") {
            return self.list("}", depth, Self::entry);
        }
        let rooted = self.take(".");
        match self.peek() {
            Some(Token::Literal) if !rooted => {
                self.at += 1;
                Ok(())
            }
            Some(Token::Identifier("true" | "false" | "null")) if !rooted => {
                self.at += 1;
                Ok(())
            }
            Some(Token::Identifier(name)) if RESERVED.contains(name) => Err(format!("`{name}` is a reserved word")),
            Some(Token::Identifier(name)) if *name != "in" => {
                self.at += 1;
                let message = self.message(depth)?;
                if !message && self.take("(") {
                    self.list(")", depth, Self::expression)?;
                }
                Ok(())
            }
            _ => Err(format!("expected an operand {}", self.place())),
        }
    }

    /// Parses a message literal `name.of.type{field: value}`, whose first name is already consumed. Returns false and consumes
    /// nothing if it is not one.
    fn message(&mut self, depth: usize) -> Result<bool, String> {
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
mod tests {
    use super::check_cel;

    #[test]
    fn expressions_of_access_logs_are_accepted() {
        for text in [
            "response.code >= 400",
            "response.code > 399 && !(request.path in ['/a', \"/b\"]) || has(request.headers['x-y'])",
            "request.url_path.startsWith('/x') ? -1 : 2.5e3",
            "xds.cluster_name.contains(r'\\d') && size(request.host) % 2 == 0",
            "{'a': 1, 'b': [1, 2u, 0x1F]}['a'] == 1 // comment",
            "google.protobuf.Duration{seconds: 3} < duration('5s')",
            "'''many\nlines''' != b\"bytes\" && [1,].exists(x, x > .5)",
            "--1 == 1",
        ] {
            assert_eq!(check_cel(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn invalid_expressions_are_refused() {
        for text in [
            "",
            "response.code >",
            "response.code >= 400 400",
            "a &&& b",
            "f(a,)",
            "'open",
            "(a",
            "a.1",
            "let == 1",
            "a = b",
            "response.code >= 400 AND a",
            "-!a",
            "#",
        ] {
            assert!(check_cel(text).is_err(), "{text}");
        }
        assert!(check_cel(&"(".repeat(10_000)).is_err());
    }
}
