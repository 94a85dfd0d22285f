//! Admission rules of header names and values.

/// Whether a text is a header name: one or more token characters (RFC 9110).
pub(crate) fn is_header_name(name: &str) -> bool {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty() && name.bytes().all(token)
}

/// State of the parser of header values.
enum State {
    Literal,
    Name,
    Array,
    Text,
    AfterText,
    InText,
    Close,
    End,
}

/// Checks that Envoy accepts a header value: text with `%COMMANDS(...)%`, where `%%` is a percent sign.
///
/// # Errors
/// The reason why Envoy would reject it.
pub(crate) fn is_header_value(value: &str) -> Result<(), &'static str> {
    if value.bytes().any(|b| (b < 0x20 && b != b'\t') || b == 0x7f) {
        return Err("a header value must not contain control characters");
    }
    let (mut state, mut bytes) = (State::Literal, value.bytes().peekable());
    while let Some(b) = bytes.next() {
        state = match (state, b) {
            (State::Literal, b'%') => match bytes.peek() {
                None => return Err("a single `%` is invalid: write a percent sign as `%%`"),
                Some(b'%') => {
                    bytes.next();
                    State::Literal
                }
                Some(_) => State::Name,
            },
            (State::Name, b'%') | (State::End, b'%') => State::Literal,
            (State::Name, b'(') => State::Array,
            (State::Array, b'[') => State::Text,
            (State::Array, b) if b != b' ' => State::InText,
            (State::Text, b'"') => State::InText,
            (State::InText, b'\\') => {
                bytes.next().ok_or("a backslash at the end escapes nothing")?;
                State::InText
            }
            (State::InText, b')') | (State::Close, b')') => State::End,
            (State::InText, b'"') => State::AfterText,
            (State::AfterText, b',') => State::Text,
            (State::AfterText, b']') => State::Close,
            (state @ (State::Literal | State::Name | State::InText), _) => state,
            (state, b' ') => state,
            (State::Text, _) => return Err("expected a quoted string in the brackets"),
            (State::AfterText, _) => return Err("expected `,` or `]` after a string in brackets"),
            (State::Close, _) => return Err("expected `)` after the brackets"),
            (State::End, _) => return Err("expected `%` after the parentheses"),
            (State::Array, _) => State::InText,
        };
    }
    if matches!(state, State::Literal) {
        Ok(())
    } else {
        Err("a command is not closed with `%`; write a percent sign as `%%`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_contain_text_and_commands() {
        for good in ["", "a", "100%%", "%HOSTNAME%", "a %REQ(x:y)% b", r#"%A(["x", "y\"z"])%"#, "a\tb", "%%%A%"] {
            assert_eq!(is_header_value(good), Ok(()), "{good}");
        }
        for bad in ["%", "a%b", "%A%%", "%A(", r#"%A(["x"%"#, r#"%A(["x"] b)%"#, "%A(x)b%", "a\nb", "\u{7f}"] {
            assert!(is_header_value(bad).is_err(), "{bad}");
        }
        assert!(is_header_name("X-a_b.c") && !is_header_name("") && !is_header_name("a b") && !is_header_name("é"));
    }
}
