//! Pictures of the console for the documents: written if `SLUICE_PICTURES` is a directory.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::fixture::BrowserFixture;

/// Name of the file, page, heading, colour scheme.
const PICTURES: [(&str, &str, &str, &str); 4] = [
    ("console-mesh", "/console/mesh?namespace=shop", "Mesh", "light"),
    ("console-timeline", "/console/timeline", "Timeline", "light"),
    ("console-dataflow", "/console/dataflow?q=virtual_services", "Dataflow", "dark"),
    ("console-proxies", "/console/proxies", "Proxies", "dark"),
];
/// Size of a picture in bytes.
const MAX_PICTURE_BYTES: usize = 200 << 10;

#[tokio::test(flavor = "multi_thread")]
async fn pictures_are_small() -> Result<()> {
    let Some(mut browser) = BrowserFixture::start().await? else { return Ok(()) };
    let directory = std::env::var_os("SLUICE_PICTURES").map(PathBuf::from);
    for (name, path, heading, scheme) in PICTURES {
        browser.page.set_scheme(scheme).await?;
        browser.open(path, heading).await?;
        let picture = browser.page.picture().await?;
        ensure!(
            picture.starts_with(b"\x89PNG") && picture.len() <= MAX_PICTURE_BYTES,
            "{name}: {} bytes",
            picture.len()
        );
        if let Some(directory) = &directory {
            std::fs::write(directory.join(format!("{name}.png")), picture)?;
        }
    }
    Ok(())
}
