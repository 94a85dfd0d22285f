//! What all pages of the console share: the frame, tables, search and paging.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use axum::response::{Html, IntoResponse};
use maud::{DOCTYPE, Markup, html};
use serde_json::Value;

use crate::answer::Parameters;

/// Rows of a table on one page.
pub(super) const PAGE_ROWS: usize = 200;

/// The pages in the navigation: path, title.
const NAVIGATION: &[(&str, &str)] = &[
    ("/console", "Overview"),
    ("/console/proxies", "Proxies"),
    ("/console/mesh", "Mesh"),
    ("/console/changes", "Changes"),
    ("/console/timeline", "Timeline"),
    ("/console/preview", "Preview"),
    ("/console/findings", "Findings"),
    ("/console/collections", "Collections"),
    ("/console/dataflow", "Dataflow"),
    ("/console/login", "Session"),
];

/// A page in the frame. `current` is its path in the navigation. A page that is `live` is requested again every 2 s while it is
/// visible.
pub(super) fn page(current: &str, title: &str, live: bool, content: &Markup) -> Html<String> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Sluice" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href="/console/assets/style.css";
                @if live { script defer src="/console/assets/live.js" {} }
            }
            body {
                a.skip href="#content" { "Skip to content" }
                header {
                    a.brand href="/console" { "Sluice" }
                    nav aria-label="Pages" {
                        @for (path, name) in NAVIGATION {
                            a href=(path) aria-current=[(*path == current).then_some("page")] { (name) }
                        }
                    }
                }
                main #content tabindex="-1" { h1 { (title) } (content) }
            }
        }
    };
    Html(page.into_string())
}

/// A page that says why there is no content.
pub(super) fn failed(status: StatusCode, reason: &str) -> Response<Body> {
    let content = html! { p role="alert" { (reason) } };
    (status, page("", "Not available", false, &content)).into_response()
}

/// A form that searches on the server. The parameters `kept` stay as they are.
pub(super) fn search(action: &str, query: &str, hint: &str, kept: &[(&str, &str)]) -> Markup {
    html! {
        form.search role="search" action=(action) method="get" {
            @for (name, value) in kept { input type="hidden" name=(name) value=(value); }
            label for="q" { "Search" }
            input #q type="search" name="q" value=(query) placeholder=(hint) autocomplete="off";
            button type="submit" { "Search" }
        }
    }
}

/// A table that can be scrolled with the keyboard. Each row is a `tr`.
pub(super) fn table(label: &str, columns: &[&str], rows: &[Markup]) -> Markup {
    html! {
        @if rows.is_empty() {
            p.empty { "None." }
        } @else {
            div.scroll role="region" aria-label=(label) tabindex="0" {
                table {
                    thead { tr { @for column in columns { th scope="col" { (column) } } } }
                    tbody { @for row in rows { (row) } }
                }
            }
        }
    }
}

/// The rows of a list that a request selects: those that match the search, on one page.
pub(super) struct Selection {
    /// The search, in lower case.
    query: String,
    /// Number of the page, from 1.
    page: usize,
}

impl Selection {
    /// Reads the parameters `q` and `page`.
    pub(super) fn read(parameters: &Parameters) -> Result<Self, Box<Response<Body>>> {
        let query = parameters.get("q").map(|query| query.trim().to_lowercase()).unwrap_or_default();
        let page = match parameters.get("page").map(String::as_str) {
            None | Some("") => 1,
            Some(text) => text.parse().ok().filter(|page| *page > 0).ok_or_else(|| {
                let reason = format!("page={text:?} is not the number of a page: 1 or more");
                Box::new(failed(StatusCode::BAD_REQUEST, &reason))
            })?,
        };
        Ok(Self { query, page })
    }

    /// The search.
    pub(super) fn query(&self) -> &str {
        &self.query
    }

    /// Whether a text matches the search.
    pub(super) fn matches(&self, text: &str) -> bool {
        self.query.is_empty() || text.to_lowercase().contains(&self.query)
    }

    /// The rows of the page, and how many there are on all pages.
    pub(super) fn rows<T>(&self, matching: impl Iterator<Item = T>) -> (Vec<T>, usize) {
        let first = (self.page - 1).saturating_mul(PAGE_ROWS);
        let (mut rows, mut count) = (Vec::new(), 0_usize);
        for row in matching {
            if count >= first && rows.len() < PAGE_ROWS {
                rows.push(row);
            }
            count += 1;
        }
        (rows, count)
    }

    /// Links to the pages before and after this one, and the number of rows on all pages.
    pub(super) fn pager(&self, path: &str, count: usize, kept: &[(&str, &str)]) -> Markup {
        let last = count.div_ceil(PAGE_ROWS).max(1);
        let link = |page: usize| {
            let mut parameters: Vec<(&str, &str)> = kept.to_vec();
            parameters.push(("q", &self.query));
            let number = page.to_string();
            parameters.push(("page", &number));
            href(path, &parameters)
        };
        html! {
            nav.pager aria-label="Pages of the list" {
                span { (count) " rows" @if last > 1 { ", page " (self.page) " of " (last) } }
                @if self.page > 1 { a href=(link(self.page - 1)) rel="prev" { "Previous" } }
                @if self.page < last { a href=(link(self.page + 1)) rel="next" { "Next" } }
            }
        }
    }
}

/// A path with parameters that are not empty.
pub(super) fn href(path: &str, parameters: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
        query.append_pair(name, value);
    }
    match query.finish() {
        query if query.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

/// A state as a mark with a text, so that it does not depend on the colour.
pub(super) fn mark(class: &str, text: &str) -> Markup {
    html! { span class={ "mark " (class) } { (text) } }
}

/// The first characters of a text.
pub(super) fn beginning(text: &str, max_characters: usize) -> String {
    match text.char_indices().nth(max_characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The entries of a list in an answer.
pub(super) fn entries(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_searched_and_paged() {
        let read = |pairs: &[(&str, &str)]| {
            Selection::read(&pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
        };
        let all: Vec<String> = (0..1_000).map(|number| format!("Row-{number}")).collect();
        let second = read(&[("page", "2")]).expect("a selection");
        let (rows, count) = second.rows(all.iter());
        assert_eq!((rows.len(), rows[0].as_str(), count), (PAGE_ROWS, "Row-200", 1_000));
        let pager = second.pager("/console/x", count, &[("type", "cds")]).into_string();
        assert!(pager.contains("href=\"/console/x?type=cds&amp;page=3\""), "{pager}");
        assert!(pager.contains("1000 rows, page 2 of 5"), "{pager}");
        let found = read(&[("q", " ROW-99 ")]).expect("a selection");
        assert_eq!(found.rows(all.iter().filter(|row| found.matches(row))).1, 11);
        for page in ["0", "-1", "x"] {
            assert_eq!(read(&[("page", page)]).err().expect("refused").status(), StatusCode::BAD_REQUEST);
        }
        let beyond = read(&[("page", "18446744073709551615")]).expect("a selection");
        assert_eq!(beyond.rows(all.iter()).0.len(), 0);
    }

    #[test]
    fn values_are_escaped() {
        let form = search("/console/proxies", "\"><script>", "", &[]).into_string();
        assert!(!form.contains("<script>"), "{form}");
        assert_eq!(href("/console/x", &[("name", "a|b&c"), ("q", "")]), "/console/x?name=a%7Cb%26c");
    }
}
