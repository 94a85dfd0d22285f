//! The grammar of `x-forwarded-client-cert`: elements between commas, `Key=value` pairs between semicolons, values in
//! double quotes where they contain either.

/// One certificate in the header.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Element {
    /// Its URI names.
    pub(super) uris: Vec<String>,
}

/// Keys that Envoy writes.
const KEYS: &[&str] = &["by", "hash", "cert", "chain", "subject", "uri", "dns"];

/// The certificates in the header; `None` if it is malformed.
pub(super) fn parse(text: &str) -> Option<Vec<Element>> {
    let mut elements = Vec::new();
    let mut element = Element::default();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=')?;
        let key = key.trim().to_ascii_lowercase();
        let (value, after) = value(after)?;
        if !KEYS.contains(&key.as_str()) {
            return None;
        }
        if key == "uri" {
            if value.is_empty() {
                return None;
            }
            element.uris.push(value);
        }
        let mut letters = after.trim_start().chars();
        match letters.next() {
            Some(';') => {}
            Some(',') => elements.push(std::mem::take(&mut element)),
            None => {
                elements.push(element);
                return Some(elements);
            }
            Some(_) => return None,
        }
        rest = letters.as_str().trim_start();
    }
    // Empty, or it ends with a separator.
    None
}

/// A value and the rest of the text.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([';', ',']).unwrap_or(text.len());
        let (value, after) = text.split_at(end);
        let value = value.trim_end();
        return (!value.contains('"')).then(|| (value.to_owned(), after));
    };
    let mut value = String::new();
    let mut letters = quoted.chars();
    loop {
        match letters.next()? {
            '"' => return Some((value, letters.as_str())),
            '\\' => value.push(letters.next()?),
            letter => value.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uris(text: &str) -> Option<Vec<Vec<String>>> {
        parse(text).map(|elements| elements.into_iter().map(|element| element.uris).collect())
    }

    #[test]
    fn elements_and_pairs_are_separated() {
        let check = |text: &str, expect: &[&[&str]]| {
            let expect: Vec<Vec<String>> =
                expect.iter().map(|uris| uris.iter().map(|uri| (*uri).to_owned()).collect()).collect();
            assert_eq!(uris(text), Some(expect), "{text}");
        };
        check("URI=a", &[&["a"]]);
        check("By=x;Hash=00;Subject=\"CN=a, \\\"b\\\";URI=forged,O=c\";URI=a;URI=b;DNS=d", &[&["a", "b"]]);
        check("By=x;URI=a,By=y;uri=\"b,c\"", &[&["a"], &["b,c"]]);
        check("By=x;Subject=\"\";Cert=\"-----BEGIN%20CERTIFICATE-----\"", &[&[]]);
        check(" By=x ; URI=a , By=y", &[&["a"], &[]]);
    }

    #[test]
    fn malformed_header_is_not_parsed() {
        for text in [
            "",
            "URI",
            "URI=",
            "=a",
            "Color=red",
            "URI=a;",
            "URI=a,",
            "URI=\"a",
            "URI=\"a\"b",
            "URI=a\"b\"",
            ",",
            "a;b",
        ] {
            assert_eq!(uris(text), None, "{text:?}");
        }
    }
}
