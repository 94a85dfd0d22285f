//! Profiles of the process (O08).

use anyhow::Result;
use sluice_testkit::server::{Options, Sluiced, request};

#[tokio::test(flavor = "multi_thread")]
async fn profiles_are_served_with_the_headers_of_istiod_or_a_clear_error() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let server = Sluiced::start(&Options::new(directory.path())).await?;
    let get = async |path: &str| request(server.http, "GET", &format!("/debug/pprof/{path}"), &[], "").await;
    let profile = get("profile?seconds=1").await?;
    assert_eq!((profile.status, profile.header("content-type")), (200, Some("application/octet-stream")));
    assert_eq!(profile.header("content-disposition"), Some("attachment; filename=\"profile\""));
    assert_eq!(profile.header("x-content-type-options"), Some("nosniff"));
    assert!(profile.body.starts_with('\u{1f}'), "gzip");
    let heap = get("heap").await?;
    assert_eq!(heap.status, 501);
    assert!(heap.body.contains("_RJEM_MALLOC_CONF=prof:true"), "{}", heap.body);
    let line = get("cmdline").await?;
    assert!(line.body.contains("sluiced\0") && line.body.contains("--configDir"), "{:?}", line.body);
    for (path, status) in [("", 200), ("goroutine", 404), ("profile?seconds=0", 400), ("profile?seconds=1000", 400)] {
        assert_eq!(get(path).await?.status, status, "{path}");
    }
    // The host of a page that an attacker's DNS name resolves to this address.
    let other_host = [("origin", "http://attacker.example")];
    assert_eq!(request(server.http, "GET", "/debug/pprof/profile", &other_host, "").await?.status, 403);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn heap_profile_is_served_if_jemalloc_samples_and_none_if_the_flag_says_no() -> Result<()> {
    let directory = tempfile::tempdir()?;
    // A sample every 4 KiB, since a small server allocates little.
    let env = vec![("_RJEM_MALLOC_CONF".to_owned(), "prof:true,lg_prof_sample:12".to_owned())];
    let server = Sluiced::start(&Options { env, ..Options::new(directory.path()) }).await?;
    let heap = request(server.http, "GET", "/debug/pprof/heap", &[], "").await?;
    assert_eq!(heap.status, 200, "{}", heap.body);
    assert!(heap.body.starts_with('\u{1f}'), "gzip");
    assert_eq!(server.get("/debug/pprof/heap?seconds=5").await?.0, 400);
    drop(server);
    let args = vec!["--profile=false".to_owned()];
    let server = Sluiced::start(&Options { args, ..Options::new(directory.path()) }).await?;
    for path in ["/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1"] {
        assert_eq!(server.get(path).await?.0, 404, "{path}");
    }
    Ok(())
}
