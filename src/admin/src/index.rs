//! The index of the debug pages, with forms for their parameters, and the list of their names.

use std::sync::Arc;

use axum::response::Html;
use axum::routing::MethodRouter;
use maud::{Markup, html};
use sluice_xds::short_id;

use crate::AdminState;
use crate::html;

/// Maximum number of proxies that the forms suggest.
const MAX_SUGGESTED_PROXIES: usize = 1_000;

/// A page below `/debug`.
pub(crate) struct Page {
    pub(crate) path: &'static str,
    pub(crate) help: &'static str,
    pub(crate) fields: &'static [Field],
    pub(crate) handler: MethodRouter<Arc<AdminState>>,
}

/// A parameter of a page.
pub(crate) enum Field {
    /// A connected proxy, without which there is no page.
    Proxy(&'static str),
    /// A connected proxy, or nothing.
    OptionalProxy(&'static str),
    /// A text, without which there is no page.
    Text(&'static str),
    /// A text, or nothing.
    OptionalText(&'static str),
    /// `true`, or nothing.
    Flag(&'static str),
    /// The body of a `POST` request, without which there is no page. No form sends it.
    Body,
}

impl Field {
    fn is_required(&self) -> bool {
        matches!(self, Self::Proxy(_) | Self::Text(_) | Self::Body)
    }

    fn html(&self) -> Markup {
        let input = |name: &str, list: Option<&str>| {
            html! {
                input type="text" name=(name) placeholder=(name) aria-label=(name) list=[list] required[self.is_required()];
            }
        };
        match self {
            Self::Proxy(name) | Self::OptionalProxy(name) => input(name, Some("proxies")),
            Self::Text(name) | Self::OptionalText(name) => input(name, None),
            Self::Flag(name) => html! { label { input type="checkbox" name=(name) value="true"; " " (name) } },
            Self::Body => html! {},
        }
    }
}

/// Whether the page needs no parameter.
fn is_complete(page: &Page) -> bool {
    !page.path.contains('{') && !page.fields.iter().any(Field::is_required)
}

/// The page as a link if it needs no parameter, and a form if it takes any.
fn row(page: &Page) -> Markup {
    let has_form = !page.fields.is_empty() && !page.fields.iter().any(|field| matches!(field, Field::Body));
    html! {
        tr {
            td { @if is_complete(page) { a href=(page.path) { (page.path) } } @else { (page.path) } }
            td {
                (page.help)
                @if has_form {
                    form action=(page.path) {
                        @for field in page.fields { (field.html()) }
                        button { "Show" }
                    }
                }
            }
        }
    }
}

/// The HTML page. Its only addresses are those of this server.
pub(crate) fn html(state: &AdminState, pages: &[Page]) -> Html<String> {
    let proxies = state.status.proxies().into_iter().take(MAX_SUGGESTED_PROXIES);
    let body = html! {
        p { "Add " code { "?pretty" } " for indented JSON." }
        datalist #proxies { @for (key, _) in proxies { option value=(short_id(&key.0)) {} } }
        table { @for page in pages { (row(page)) } }
    };
    html::page("Sluice", &body)
}

/// The names of the pages, without profiles, as in istiod.
pub(crate) fn names(pages: &[Page]) -> Vec<&'static str> {
    let names = pages.iter().filter_map(|page| page.path.strip_prefix("/debug/"));
    names.filter(|name| *name != "list" && !name.contains('{') && !name.starts_with("pprof/")).collect()
}

#[cfg(test)]
mod tests {
    use axum::routing::get;

    use super::*;

    fn page(path: &'static str, fields: &'static [Field]) -> Page {
        Page { path, help: "a & b", fields, handler: get(async || "") }
    }

    #[test]
    fn only_pages_that_work_without_parameters_are_links() {
        let row = |page: Page| super::row(&page).into_string();
        let plain = row(page("/debug/a", &[]));
        assert_eq!(plain, "<tr><td><a href=\"/debug/a\">/debug/a</a></td><td>a &amp; b</td></tr>");
        assert!(!row(page("/debug/a/{name}", &[])).contains("<a "));
        let required = row(page("/debug/b", &[Field::Proxy("proxyID"), Field::Flag("include_eds")]));
        assert!(!required.contains("<a ") && required.contains("name=\"proxyID\"") && required.contains(" required"));
        let posted = row(page("/debug/d", &[Field::Body, Field::Flag("delete")]));
        assert!(!posted.contains("<a ") && !posted.contains("<form"), "{posted}");
        let optional = row(page("/debug/c", &[Field::OptionalText("kind")]));
        assert!(optional.contains("<a href=\"/debug/c\">") && optional.contains("<form action=\"/debug/c\">"));
    }
}
