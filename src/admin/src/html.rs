//! HTML for browsers: the frame of a page, and tables.

use std::fmt::Write;

use axum::http::{HeaderMap, header};
use axum::response::Html;

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
pub(crate) fn page(title: &str, body: &str) -> Html<String> {
    let title = escape(title);
    Html(format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head>\
         <body><p><a href=\"/debug\">Debug pages</a></p><h1>{title}</h1>{body}</body></html>\n"
    ))
}

/// Whether the client is a browser, which prefers HTML. Tools accept anything, and get JSON.
pub(crate) fn is_preferred(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    accept.split(',').next().is_some_and(|first| first.trim().starts_with("text/html"))
}

/// A cell of a table.
pub(crate) enum Cell {
    /// A text.
    Text(String),
    /// A number or a size.
    Number(String),
    /// A text that links to an address.
    Link { text: String, address: String },
}

/// A table; "none" without rows.
pub(crate) fn table(columns: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> String {
    let mut body = String::new();
    for row in rows {
        body += "<tr>";
        for cell in row {
            // Writing to a string cannot fail.
            let _ = match cell {
                Cell::Text(text) => write!(body, "<td>{}</td>", escape(&text)),
                Cell::Number(text) => write!(body, "<td class=\"number\">{}</td>", escape(&text)),
                Cell::Link { text, address } => {
                    write!(body, "<td><a href=\"{}\">{}</a></td>", escape(&address), escape(&text))
                }
            };
        }
        body += "</tr>";
    }
    if body.is_empty() {
        return "<p>none</p>".to_owned();
    }
    let head: String = columns.iter().map(|column| format!("<th>{}</th>", escape(column))).collect();
    format!("<table><tr>{head}</tr>{body}</table>")
}

/// A text in HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn texts_and_addresses_are_escaped() {
        let link = Cell::Link { text: "<b>".to_owned(), address: "\"><script>".to_owned() };
        let text = table(&["a"], [vec![link, Cell::Text("x&y".to_owned())]]);
        assert!(text.contains("<a href=\"&quot;&gt;&lt;script&gt;\">&lt;b&gt;</a></td><td>x&amp;y</td>"), "{text}");
        assert_eq!(table(&["a"], []), "<p>none</p>");
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
