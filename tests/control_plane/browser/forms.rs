//! The forms of the console: previews, and the session of a browser from outside the loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::pods::token::TokenIssuer;
use sluice_testkit::server::{Options, Sluiced};

use super::devtools::{BrowserPage, programs};
use super::fixture::BrowserFixture;

/// Writes a value into a field of a form, and sends the form.
fn send(field: &str, value: &str) -> String {
    let value = Value::from(value);
    format!("document.querySelector('{field}').value = {value}; document.querySelector('{field}').form.requestSubmit()")
}

#[tokio::test(flavor = "multi_thread")]
async fn pasted_objects_are_previewed_and_not_applied() -> Result<()> {
    let Some(mut browser) = BrowserFixture::start().await? else { return Ok(()) };
    browser.open("/console/preview", "Preview").await?;
    let rule = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: ratings, namespace: shop}\n\
                spec:\n  hosts: [ratings.shop.svc.cluster.local]\n  http:\n\
                \x20 - route: [{destination: {host: ratings.shop.svc.cluster.local, subset: v1}}]\n";
    browser.page.follow(&send("#objects", rule)).await?;
    let text = browser.page.evaluate("document.querySelector('main').innerText").await?;
    let text = text.as_str().unwrap_or_default();
    for part in ["VirtualService/shop/ratings", "cart-7f.shop", "- \"outbound|80|v2|", "+ \"outbound|80|v1|"] {
        ensure!(text.contains(part), "the result has {part}: {text}");
    }
    let kept = browser.page.evaluate("document.querySelector('#objects').value").await?;
    ensure!(kept == rule, "the objects stay in the form: {kept}");
    let findings: Vec<String> =
        browser.page.violations().await?.into_iter().chain(browser.page.console_errors()).collect();
    ensure!(findings.is_empty(), "{findings:#?}");
    let history = browser.mesh.answer(&["history", "--object", "VirtualService/shop/ratings"]).await;
    ensure!(history["changes"].as_array().map(Vec::len) == Some(2), "nothing is applied: {history}");
    Ok(())
}

/// An address of this machine that is not on the loopback.
fn own_address() -> Option<IpAddr> {
    // Nothing is sent: connecting a datagram socket only chooses the address.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback())
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_from_outside_the_loopback_signs_in_with_a_token() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    let Some(address) = own_address() else { anyhow::bail!("this machine has no address besides the loopback") };
    let directory = tempfile::tempdir()?;
    let issuer = TokenIssuer::new()?;
    std::fs::write(directory.path().join("keys.json"), issuer.key_set())?;
    let objects = directory.path().join("objects");
    std::fs::create_dir(&objects)?;
    let options = Options {
        args: vec![
            format!("--httpAddr={}", SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
            format!("--tokenKeys={}", directory.path().join("keys.json").display()),
            "--tokenIssuer=https://issuer".to_owned(),
        ],
        ..Options::new(&objects)
    };
    let server = Sluiced::start(&options).await?;
    let origin = format!("http://{}", SocketAddr::new(address, server.http.port()));
    let mut page = BrowserPage::open(&programs).await?;
    let heading = "document.querySelector('h1').textContent";
    page.navigate(&format!("{origin}/console/findings")).await?;
    ensure!(page.evaluate(heading).await? == "Session", "the form is shown instead of the page");
    page.follow(&send("#token", "nonsense")).await?;
    let alert = page.evaluate("document.querySelector('[role=alert]').textContent").await?;
    ensure!(alert.as_str().is_some_and(|alert| alert.contains("authentication failure")), "{alert}");

    let claims = |account: &str| json!({"iss": "https://issuer", "sub": format!("system:serviceaccount:{account}"), "aud": ["istio-ca"], "exp": 4_000_000_000_i64});
    page.follow(&send("#token", &issuer.sign(&claims("shop:cart"))?)).await?;
    let alert = page.evaluate("document.querySelector('[role=alert]').textContent").await?;
    ensure!(alert.as_str().is_some_and(|alert| alert.contains("not for service accounts")), "{alert}");
    page.follow(&send("#token", &issuer.sign(&claims("istio-system:operator"))?)).await?;
    ensure!(page.evaluate(heading).await? == "Findings", "the page that was wanted follows");
    ensure!(page.evaluate("document.cookie").await? == "", "scripts do not see the session");
    page.navigate(&format!("{origin}/debug/registryz")).await?;
    ensure!(
        page.evaluate("document.querySelector('pre').innerText.trim()").await? == "[]",
        "the session is valid for /debug"
    );

    page.navigate(&format!("{origin}/console/login")).await?;
    page.follow("document.querySelector('form[action=\"/console/logout\"]').requestSubmit()").await?;
    page.navigate(&format!("{origin}/console/findings")).await?;
    ensure!(page.evaluate(heading).await? == "Session", "the session has ended");
    Ok(())
}
