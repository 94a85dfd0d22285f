//! Which web page has sent a request, as its browser states it.
//!
//! A browser adds the credentials that it keeps for a host to requests of any page, and reaches the loopback for any page. What pages
//! of other origins send is therefore rejected where a caller presents nothing that such a page cannot have.

use axum::http::{HeaderMap, HeaderValue, header};

/// The sender of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sender {
    /// A page of this server.
    Own,
    /// A page of another origin.
    Other,
    /// A tool, a link, or an address that was typed.
    Unknown,
}

impl Sender {
    /// The sender that these headers state. `Origin` decides, then `Sec-Fetch-Site`, then `Referer`.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut origins = headers.get_all(header::ORIGIN).iter().peekable();
        if origins.peek().is_some() {
            return if origins.all(|origin| is_own(headers, origin)) { Self::Own } else { Self::Other };
        }
        let is = |name: &str, value: &str| headers.get(name).is_some_and(|found| found == value);
        if is("sec-fetch-site", "same-origin") {
            return Self::Own;
        }
        if is("sec-fetch-site", "cross-site") || is("sec-fetch-site", "same-site") {
            // Links of other pages work.
            return if is("sec-fetch-mode", "navigate") { Self::Unknown } else { Self::Other };
        }
        match headers.get(header::REFERER) {
            Some(referer) if is_own(headers, referer) => Self::Own,
            _ => Self::Unknown,
        }
    }
}

/// Whether an address has the authority that the request is for. The scheme is not compared: a proxy may terminate TLS.
fn is_own(headers: &HeaderMap, address: &HeaderValue) -> bool {
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let address = text(address);
    let authority = address.as_deref().and_then(|address| address.split_once("://"));
    let authority = authority.map(|(_, rest)| rest.split('/').next().unwrap_or_default());
    let host = headers.get(header::HOST).and_then(text);
    authority.zip(host.as_deref()).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
}

/// Whether the browser has sent the request over TLS, to this server or to a proxy in front of it.
pub(crate) fn is_over_tls(headers: &HeaderMap) -> bool {
    headers.get(header::ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn origin_decides_before_other_headers() {
        let check = |pairs: &[(&'static str, &'static str)], expect: Sender| {
            let with_host: Vec<_> = [("host", "Mesh.example:8080")].into_iter().chain(pairs.iter().copied()).collect();
            assert_eq!(Sender::of(&headers(&with_host)), expect, "{pairs:?}");
        };
        check(&[], Sender::Unknown);
        check(&[("origin", "http://mesh.example:8080")], Sender::Own);
        check(&[("origin", "https://mesh.example:8080")], Sender::Own);
        check(&[("origin", "http://mesh.example")], Sender::Other);
        check(&[("origin", "http://mesh.example:8080.evil.example")], Sender::Other);
        check(&[("origin", "http://evil.example"), ("sec-fetch-site", "same-origin")], Sender::Other);
        check(&[("origin", "null")], Sender::Other);
        check(&[("sec-fetch-site", "same-origin")], Sender::Own);
        check(&[("sec-fetch-site", "none")], Sender::Unknown);
        check(&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")], Sender::Unknown);
        check(&[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")], Sender::Other);
        check(&[("referer", "http://mesh.example:8080/console")], Sender::Own);
        check(&[("referer", "http://evil.example/")], Sender::Unknown);
        assert_eq!(Sender::of(&headers(&[("origin", "http://mesh.example")])), Sender::Other, "no host");
    }
}
