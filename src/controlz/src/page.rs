//! HTML of the pages.

use axum::response::Html;
use serde_json::{Map, Value};

use crate::Page;

/// A page with a heading, and a link to the list of topics.
pub(crate) fn page(title: &str, body: &str) -> Page {
    let title = if title == "ControlZ" { title.to_owned() } else { format!("ControlZ / {title}") };
    Html(format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>\
         :root{{color-scheme:light dark}}body{{font-family:sans-serif;margin:1em}}\
         td,th{{padding:.3em 1em .3em 0;text-align:left;vertical-align:top}}</style></head>\
         <body><p><a href=\"/\">ControlZ</a></p><h1>{title}</h1>{body}</body></html>\n"
    ))
}

/// A value as a table.
pub(crate) fn table(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let row =
                |(name, value): (&String, &Value)| format!("<tr><th>{}</th><td>{}</td></tr>", text(name), cell(value));
            format!("<table>{}</table>", fields.iter().map(row).collect::<String>())
        }
        Value::Array(rows) => {
            let columns = columns(rows);
            let head: String = columns.iter().map(|name| format!("<th>{}</th>", text(name))).collect();
            let row = |row: &Value| {
                let cells: String = match row {
                    Value::Object(fields) => columns.iter().map(|name| data(fields.get(name))).collect(),
                    other => data(Some(other)),
                };
                format!("<tr>{cells}</tr>")
            };
            format!("<table><tr>{head}</tr>{}</table>", rows.iter().map(row).collect::<String>())
        }
        other => format!("<p>{}</p>", cell(other)),
    }
}

/// The names of the fields of all rows.
fn columns(rows: &[Value]) -> Vec<String> {
    let mut names = Map::new();
    for name in rows.iter().filter_map(Value::as_object).flat_map(Map::keys) {
        names.entry(name.clone()).or_insert(Value::Null);
    }
    names.into_iter().map(|(name, _)| name).collect()
}

fn data(value: Option<&Value>) -> String {
    format!("<td>{}</td>", value.map(cell).unwrap_or_default())
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(string) => text(string),
        other => text(&other.to_string()),
    }
}

/// A text in HTML.
pub(crate) fn text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_are_escaped() {
        let of_object = table(&json!({"<b>": "a&\"b\""}));
        assert!(of_object.contains("<th>&lt;b&gt;</th><td>a&amp;&quot;b&quot;</td>"), "{of_object}");
    }

    #[test]
    fn rows_have_the_columns_of_all() {
        let of_rows = table(&json!([{"a": 1}, {"b": [2]}]));
        assert!(
            of_rows.contains("<tr><th>a</th><th>b</th></tr><tr><td>1</td><td></td></tr><tr><td></td><td>[2]</td></tr>")
        );
    }
}
