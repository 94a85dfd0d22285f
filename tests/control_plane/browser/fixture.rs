//! A mesh with routes, policies and proxies, and a browser.

use anyhow::{Context, Result};

use super::devtools::{BrowserPage, programs};
use crate::answers::mesh::{AnswersFixture, Client};

/// A control plane with connected proxies, and a page in a browser.
pub(super) struct BrowserFixture {
    pub(super) mesh: AnswersFixture,
    pub(super) page: BrowserPage,
    pub(super) origin: String,
    _proxies: [Client; 2],
}

/// Every page of the console in the fixture's mesh, with its heading.
pub(super) const PAGES: [(&str, &str); 15] = [
    ("/console", "Overview"),
    ("/console/proxies", "Proxies"),
    ("/console/proxies/cart%2D7f%2Eshop", "cart-7f.shop"),
    (
        "/console/proxies/cart%2D7f%2Eshop/cds?name=outbound%7C80%7Cv1%7Cratings.shop.svc.cluster.local",
        "outbound|80|v1|ratings.shop.svc.cluster.local",
    ),
    ("/console/mesh", "Mesh"),
    ("/console/mesh?namespace=shop&q=cart", "Mesh"),
    ("/console/changes", "Changes"),
    ("/console/timeline", "Timeline"),
    ("/console/preview", "Preview"),
    ("/console/findings", "Findings"),
    ("/console/collections", "Collections"),
    ("/console/collections/services", "services"),
    ("/console/collections/rejects?q=absent", "rejects"),
    ("/console/dataflow", "Dataflow"),
    ("/console/login", "Session"),
];

impl BrowserFixture {
    /// `None` if the browser is not installed.
    pub(super) async fn start() -> Result<Option<Self>> {
        let Some(programs) = programs() else { return Ok(None) };
        let page = BrowserPage::open(&programs).await?;
        let mesh = AnswersFixture::start_with(&[("more.yaml", include_str!("mesh.yaml"))]).await;
        let proxies = [mesh.connect("cart-7f", "cart").await, mesh.connect("till-1", "till").await];
        mesh.route_to(2, "v2");
        mesh.answer(&["wait", "vs/shop/ratings", "--generation=2"]).await;
        let origin = format!("http://{}", mesh.server.http);
        Ok(Some(Self { mesh, page, origin, _proxies: proxies }))
    }

    /// Opens a page of the console. It has this heading.
    pub(super) async fn open(&mut self, path: &str, heading: &str) -> Result<()> {
        self.page.navigate(&format!("{}{path}", self.origin)).await?;
        let found = self.page.evaluate("document.querySelector('h1').textContent").await?;
        anyhow::ensure!(found == heading, "{path} has the heading {found}");
        Ok(())
    }
}

/// A number that an expression in the page has as its value.
pub(super) async fn number(page: &mut BrowserPage, expression: &str) -> Result<u64> {
    page.evaluate(expression).await?.as_u64().with_context(|| format!("{expression} is a number"))
}
