use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::*;

fn new_root(organization: &str) -> Material {
    root::create(organization, NewKey::EcdsaP256, Duration::from_secs(86400), unix_seconds()).expect("a root")
}

/// An API server whose response to all requests is the Secret of a root.
fn api_server(root: &Material) -> Client {
    let data = store::to_secret(SECRET, root).into_iter();
    let data: Map<String, Value> = data.map(|(name, text)| (name, STANDARD.encode(text.as_bytes()).into())).collect();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "data": data}).to_string();
    let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        let body = kube::client::Body::from(secret.clone().into_bytes());
        async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
    });
    Client::new(service, "istio-system")
}

/// Waits until the signer has this number of roots.
async fn until_roots(signer: &Signer, number: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while signer.current().roots().len() != number {
        assert!(Instant::now() < deadline, "{} roots instead of {number}", signer.current().roots().len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn roots_beside_a_secret_are_added_and_withdrawn_while_the_authority_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    let [own, other] = ["td", "next"].map(new_root);
    let config = AuthorityConfig {
        directory: directory.path().to_owned(),
        check_interval: Duration::ZERO,
        ..AuthorityConfig::default()
    };
    let cluster = Some((api_server(&own), "istio-system".into()));
    let keeper = AuthorityKeeper::open(config, cluster, "td").await.expect("opened");
    let signer = keeper.signer();
    assert_eq!(signer.current().roots_pem(), own.roots);
    let stop = CancellationToken::new();
    let running = tokio::spawn(keeper.run(stop.clone()));
    let file = directory.path().join(store::ROOTS);
    std::fs::write(&file, &other.roots).expect("written");
    until_roots(&signer, 2).await;
    assert_eq!(signer.current().certificate().pem(), own.certificate, "the signing certificate stays");
    std::fs::remove_file(&file).expect("removed");
    until_roots(&signer, 1).await;
    stop.cancel();
    running.await.expect("it stops");
}

#[tokio::test]
async fn files_that_change_without_a_notification_are_read_at_an_interval() {
    let root = tempfile::tempdir().expect("a directory");
    let path = |name: &str| root.path().join(name);
    let [own, other] = ["td", "next"].map(new_root);
    let one = store::to_files(&own);
    let mut both = one.clone();
    both.insert(store::ROOTS.to_owned(), Zeroizing::new(own.roots.clone() + &other.roots));
    for (name, files) in [("one", &one), ("both", &both)] {
        directory::write(&path(name), files).expect("written");
    }
    // What is watched is the directory behind the link, in which nothing changes.
    symlink(path("one"), path("cacerts")).expect("a link");
    let config = AuthorityConfig {
        directory: path("cacerts"),
        check_interval: Duration::ZERO,
        multi_root: true,
        ..AuthorityConfig::default()
    };
    let keeper = AuthorityKeeper::open(config, None, "td").await.expect("opened");
    let signer = keeper.signer();
    assert_eq!(signer.current().roots().len(), 1);
    let stop = CancellationToken::new();
    let running = tokio::spawn(keeper.run(stop.clone()));
    // The runtime of the test has one thread: the keeper begins to watch.
    tokio::task::yield_now().await;
    symlink(path("both"), path("next")).expect("a link");
    std::fs::rename(path("next"), path("cacerts")).expect("the link is replaced");
    until_roots(&signer, 2).await;
    stop.cancel();
    running.await.expect("it stops");
}

#[tokio::test]
async fn invalid_additional_roots_leave_the_previous_ones_in_use_and_do_not_stop_checks() {
    let directory = tempfile::tempdir().expect("a directory");
    let [own, other, renewed] = ["td", "next", "td"].map(new_root);
    std::fs::write(directory.path().join(store::ROOTS), &other.roots).expect("written");
    let config = AuthorityConfig { directory: directory.path().to_owned(), ..AuthorityConfig::default() };
    let cluster = Some((api_server(&own), "istio-system".into()));
    let mut keeper = AuthorityKeeper::open(config, cluster, "td").await.expect("opened");
    assert_eq!(keeper.signer.current().roots().len(), 2);
    std::fs::write(directory.path().join(store::ROOTS), "half of a file").expect("written");
    // Another replica has changed the Secret.
    keeper.storage = MaterialStore::Secret(SecretApi::new(api_server(&renewed), "istio-system"), SECRET);
    keeper.check().await;
    let current = keeper.signer.current();
    assert_eq!(current.certificate().pem(), renewed.certificate);
    assert!(current.roots_pem().contains(other.roots.trim()));
}

#[tokio::test]
async fn invalid_authority_in_the_directory_is_logged_once_while_the_reason_stays_the_same() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = AuthorityConfig { directory: directory.path().to_owned(), create: true, ..AuthorityConfig::default() };
    let mut keeper = AuthorityKeeper::open(config, None, "td").await.expect("opened");
    let file = |name: &str| -> PathBuf { directory.path().join(name) };
    let before = std::fs::read(file("ca-cert.pem")).expect("a certificate");
    assert!(!keeper.reload_files(), "it is valid");
    std::fs::write(file("ca-cert.pem"), "no certificate").expect("written");
    assert_eq!([keeper.reload_files(), keeper.reload_files()], [true, false]);
    std::fs::remove_file(file("ca-cert.pem")).expect("removed");
    assert_eq!([keeper.reload_files(), keeper.reload_files()], [true, false], "another reason");
    std::fs::write(file("ca-cert.pem"), before).expect("written");
    assert!(!keeper.reload_files(), "it is valid again");
    std::fs::remove_file(file("ca-cert.pem")).expect("removed");
    assert!(keeper.reload_files(), "it is invalid again");
}
