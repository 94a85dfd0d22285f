//! HTML for browsers: the frame of a page, and tables.

use std::fmt::Display;

use axum::http::{HeaderMap, header};
use axum::response::Html;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em}\
h1{font-size:1.4em}h2{font-size:1.1em;margin-top:1.6em}\
table{border-collapse:collapse;width:100%}\
td,th{border-top:1px solid #8884;padding:.35em 1em .35em 0;text-align:left;vertical-align:top;overflow-wrap:anywhere}\
form{display:flex;flex-wrap:wrap;gap:.4em;align-items:center;margin:.2em 0}\
input,select,button{font:inherit}input[type=text]{width:14em}\
.number{text-align:right;font-variant-numeric:tabular-nums}";

/// A page with a heading, and a link to the list of the pages.
pub(crate) fn page(title: &str, body: &Markup) -> Html<String> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                p { a href="/debug" { "Debug pages" } }
                h1 { (title) }
                (body)
            }
        }
    };
    Html(page.into_string())
}

/// Whether the client is a browser, which prefers HTML. Tools accept anything, and get JSON.
pub(crate) fn is_preferred(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.split(',').next().is_some_and(|first| first.trim().starts_with("text/html"))
}

/// A cell with a text.
pub(crate) fn cell(text: &dyn Display) -> Markup {
    html! { td { (text.to_string()) } }
}

/// A cell with a number or a size.
pub(crate) fn number(text: &dyn Display) -> Markup {
    html! { td.number { (text.to_string()) } }
}

/// A cell with a text that links to an address.
pub(crate) fn link(text: &str, address: &str) -> Markup {
    html! { td { a href=(address) { (text) } } }
}

/// A table; "none" without rows. A row is its cells.
pub(crate) fn table(columns: &[&str], rows: impl IntoIterator<Item = Vec<Markup>>) -> Markup {
    let mut rows = rows.into_iter().peekable();
    if rows.peek().is_none() {
        return html! { p { "none" } };
    }
    html! {
        table {
            tr { @for column in columns { th { (column) } } }
            @for row in rows { tr { @for cell in row { (cell) } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn texts_and_addresses_are_escaped() {
        let link = link("<b>", "\"><script>");
        let text = table(&["a"], [vec![link, cell(&"x&y")]]).into_string();
        assert!(text.contains("<a href=\"&quot;&gt;&lt;script&gt;\">&lt;b&gt;</a></td><td>x&amp;y</td>"), "{text}");
        assert_eq!(table(&["a"], []).into_string(), "<p>none</p>");
    }

    #[test]
    fn only_browsers_get_html() {
        let check = |accept: &'static str, expected: bool| {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(is_preferred(&headers), expected, "{accept}");
        };
        check("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true);
        check("*/*", false);
        check("application/json, text/html", false);
        assert!(!is_preferred(&HeaderMap::new()));
    }
}
