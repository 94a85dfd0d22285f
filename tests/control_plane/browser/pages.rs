//! Every page of the console: no errors, reachable with the keyboard, accessible in both colour schemes.

use anyhow::{Result, ensure};

use super::fixture::{BrowserFixture, PAGES, number};

/// Selects what a user can operate.
const CONTROLS: &str = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";

#[tokio::test(flavor = "multi_thread")]
async fn every_page_loads_without_errors_and_is_accessible_in_both_colour_schemes() -> Result<()> {
    let Some(mut browser) = BrowserFixture::start().await? else { return Ok(()) };
    let mut findings = Vec::new();
    for scheme in ["light", "dark"] {
        browser.page.set_scheme(scheme).await?;
        let mut background = serde_json::Value::Null;
        for (path, heading) in PAGES {
            browser.open(path, heading).await?;
            background = browser.page.evaluate("getComputedStyle(document.body).backgroundColor").await?;
            let violations = browser.page.violations().await?;
            let found = browser.page.console_errors().into_iter().chain(violations);
            findings.extend(found.map(|finding| format!("{path} ({scheme}): {finding}")));
        }
        let expected = if scheme == "light" { "rgb(255, 255, 255)" } else { "rgb(18, 23, 29)" };
        ensure!(background == expected, "the {scheme} scheme has the background {background}");
    }
    ensure!(findings.is_empty(), "{}", findings.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn keyboard_reaches_every_control() -> Result<()> {
    let Some(mut browser) = BrowserFixture::start().await? else { return Ok(()) };
    // The pages with hundreds of links have the same controls as these.
    let pages = PAGES.iter().filter(|(path, _)| !path.ends_with("/collections") && !path.ends_with("/dataflow"));
    for (path, heading) in pages {
        browser.open(path, heading).await?;
        let collect = format!(
            "window.controls = [...document.querySelectorAll(\"{CONTROLS}\")].filter(it => it.checkVisibility()); \
             window.reached = new Set(); window.controls.length"
        );
        let count = number(&mut browser.page, &collect).await?;
        ensure!(count > 10, "{path} has {count} controls");
        for _ in 0..count {
            browser.page.press_tab().await?;
            browser.page.evaluate("window.reached.add(document.activeElement), 0").await?;
        }
        let missing = browser
            .page
            .evaluate("window.controls.filter(it => !window.reached.has(it)).map(it => it.outerHTML).join(' ')")
            .await?;
        ensure!(missing == "", "the keyboard does not reach on {path}: {missing}");
    }
    Ok(())
}
