//! `sluice-bench` as a user runs it: every change it makes arrives, and what must not be sent is not.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sluice_testkit::pods::network::workspace_binary;
use tokio::process::Command;

/// Runs a small mesh; gives the result as JSON.
async fn run(arguments: &[&str]) -> Result<Value> {
    let directory = tempfile::tempdir()?;
    let json = directory.path().join("result.json");
    let html = directory.path().join("report.html");
    let output = Command::new(workspace_binary("sluice-bench")?)
        .args(["run", "--services=44", "--namespaces=4", "--endpoints=2", "--proxies=12", "--repeat=1", "--quiet=100"])
        .arg("--sluiced")
        .arg(workspace_binary("sluiced")?)
        .arg("--json")
        .arg(&json)
        .arg("--html")
        .arg(&html)
        .args(arguments)
        .output()
        .await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(&html)?;
    ensure!(page.contains("<svg") && page.ends_with("</html>\n"), "the page is whole");
    serde_json::from_slice(&std::fs::read(&json)?).context("read the result")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is a number"))
}

#[tokio::test]
async fn changes_arrive_at_everyone_concerned_and_storms_send_nothing_twice() -> Result<()> {
    let kinds = "endpoint-ready,endpoint-address,scale-up,service-add,service-remove,vs,dr,peer-authentication,\
                 mesh-config,no-op,rolling-restart";
    let result = run(&["--changes", kinds, "--storms=reconnect,restart,slow"]).await?;
    let changes = result["changes"].as_array().context("list the changes")?;
    assert_eq!(changes.len(), 12, "each kind once, and one more beside slow clients");
    for change in changes {
        let (kind, round) = (&change["kind"], &change["rounds"][0]);
        assert_eq!(number(&round["missed"]), 0, "{kind}");
        let nobody = kind == "no-op";
        assert_eq!(number(&change["affected"]) == 0, nobody, "{kind}");
        assert_eq!(number(&round["traffic"]["messages"]) == 0, nobody, "{kind}");
        assert_eq!(round["last_ms"].is_null(), nobody, "{kind}");
    }
    let one = |kind: &str| changes.iter().find(|change| change["kind"] == kind).expect("made");
    assert_eq!(one("endpoint-address")["rounds"][0]["traffic"]["resources"], serde_json::json!([0, 12, 0, 0]));
    assert_eq!(number(&one("peer-authentication")["affected"]), 3, "the proxies of one of four namespaces");

    assert!(result["connect"]["traffic"]["resources"].as_array().context("count")?.iter().all(|n| number(n) > 0));
    let storms = result["storms"].as_array().context("list the storms")?;
    let names: BTreeSet<&str> = storms.iter().filter_map(|storm| storm["name"].as_str()).collect();
    assert!(names.contains("reconnect") && names.contains("restart") && names.len() == 3, "{names:?}");
    for storm in storms {
        assert_eq!(number(&storm["missed"]), 0, "{storm}");
        assert_eq!(storm["traffic"]["resources"], serde_json::json!([0, 0, 0, 0]), "{} sends nothing", storm["name"]);
    }
    Ok(())
}

#[tokio::test]
async fn state_of_the_world_is_spoken_too() -> Result<()> {
    let result = run(&["--protocol=sotw", "--changes=service-add,service-remove,vs,no-op"]).await?;
    for change in result["changes"].as_array().context("list the changes")? {
        assert_eq!(number(&change["rounds"][0]["missed"]), 0, "{}", change["kind"]);
    }
    Ok(())
}

#[tokio::test]
async fn mistakes_are_told() -> Result<()> {
    let sluiced = workspace_binary("sluiced")?;
    let bench = || -> Result<Command> { Ok(Command::new(workspace_binary("sluice-bench")?)) };
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join("mine.txt"), "keep")?;
    let output = bench()?.arg("run").arg("--sluiced").arg(&sluiced).arg("--config-dir").arg(directory.path()).output();
    let output = output.await?;
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not empty"));
    let shape = ["run", "--proxies=9", "--services=2", "--namespaces=1", "--endpoints=1"];
    let output = bench()?.args(shape).arg("--sluiced").arg(&sluiced).output().await?;
    assert!(String::from_utf8_lossy(&output.stderr).contains("at most the 2 pods"));
    Ok(())
}
