//! The size of pages in a large mesh: what the browser has to lay out stays bounded.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use super::fixture::{BrowserFixture, number};

/// Services of the mesh.
const SERVICES: usize = 1_000;
/// Nodes of the document of a page.
const MAX_NODES: u64 = 12_000;

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_thousand_rows_have_a_bounded_number_of_nodes() -> Result<()> {
    let Some(mut browser) = BrowserFixture::start().await? else { return Ok(()) };
    let mut services = String::new();
    for number in 0..SERVICES {
        let (third, fourth) = (number / 250, number % 250 + 1);
        writeln!(
            services,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{number:04}, namespace: many}}\n\
             spec: {{clusterIP: 10.9.{third}.{fourth}, selector: {{app: s{number}}}, ports: [{{name: http, port: 80}}]}}\n\
             ---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: s{number:04}, namespace: many}}\n\
             spec:\n  hosts: [s{number:04}.many.svc.cluster.local]\n  http: [{{route: [{{destination: \
             {{host: s{:04}.many.svc.cluster.local}}}}]}}]",
            number / 2,
        )?;
    }
    let namespace = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: many, labels: {mesh: \"on\"}}\n";
    browser.mesh.add_file("many.yaml", &(namespace.to_owned() + &services));
    browser.mesh.answer(&["wait", "vs/many/s0999", "--for=applied"]).await;
    for (path, heading, statement) in [
        ("/console/collections/services?q=.many.", "services", "1000 rows, page 1 of 5"),
        ("/console/mesh?namespace=many", "Mesh", "800 nodes and"),
        ("/console/dataflow", "Dataflow", "collections"),
        ("/console/changes", "Changes", "more"),
    ] {
        browser.open(path, heading).await?;
        let nodes = number(&mut browser.page, "document.querySelectorAll('*').length").await?;
        ensure!(nodes <= MAX_NODES, "{path} has {nodes} nodes");
        let text = browser.page.evaluate("document.querySelector('main').innerText").await?;
        ensure!(text.as_str().is_some_and(|text| text.contains(statement)), "{path} has {statement}: {text}");
    }
    Ok(())
}
