//! `sluice-bench` as a user runs it: every change arrives, and nothing is sent that no change requires.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::binary::workspace_binary;
use tokio::process::Command;

/// Runs a small mesh and returns the result as JSON.
async fn run(arguments: &[&str]) -> Result<Value> {
    let directory = tempfile::tempdir()?;
    let json = directory.path().join("result.json");
    let html = directory.path().join("report.html");
    let output = Command::new(workspace_binary("sluice-bench")?)
        .args(["run", "--services=44", "--namespaces=4", "--endpoints=3", "--repeat=1", "--quiet=250", "--rest=0"])
        .arg("--sluiced")
        .arg(workspace_binary("sluiced")?)
        .arg("--json")
        .arg(&json)
        .arg("--html")
        .arg(&html)
        .args((!arguments.iter().any(|argument| argument.starts_with("--proxies"))).then_some("--proxies=12"))
        .args(arguments)
        .output()
        .await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(&html)?;
    ensure!(page.contains("<svg") && page.ends_with("</html>\n"), "the page is complete");
    serde_json::from_slice(&std::fs::read(&json)?).context("read the result")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is a number"))
}

#[tokio::test]
async fn changes_reach_every_affected_proxy_and_storms_send_nothing_twice() -> Result<()> {
    let kinds = "endpoint-ready,endpoint-address,scale-up,service-add,service-remove,vs,dr,peer-authentication,\
                 mesh-config,no-op,rolling-restart,secret-rotation,sidecar,authz,authz-root";
    let result = run(&["--changes", kinds, "--storms=reconnect,restart,rush,backlog,slow"]).await?;
    let changes = result["changes"].as_array().context("list the changes")?;
    assert_eq!(changes.len(), 16, "each kind once, and one more beside slow clients");
    for change in changes {
        let (kind, round) = (&change["kind"], &change["rounds"][0]);
        assert_eq!(number(&round["missed"]), 0, "{kind}");
        let affects_none = kind == "no-op";
        assert_eq!(number(&change["affected"]) == 0, affects_none, "{kind}");
        assert_eq!(number(&round["traffic"]["messages"]) == 0, affects_none, "{kind}");
        assert_eq!(round["last_ms"].is_null(), affects_none, "{kind}");
    }
    let one = |kind: &str| changes.iter().find(|change| change["kind"] == kind).expect("made");
    assert_eq!(
        one("endpoint-address")["rounds"][0]["traffic"]["resources"],
        json!([0, 13, 0, 0, 0, 0, 0, 0, 0]),
        "the sidecars and the gateway"
    );
    assert_eq!(one("secret-rotation")["rounds"][0]["traffic"]["resources"], json!([0, 0, 0, 0, 0, 1, 0, 0, 0]));
    assert_eq!(number(&one("peer-authentication")["affected"]), 3, "the proxies of one of four namespaces");

    let counts = result["connect"]["traffic"]["resources"].as_array().context("count")?;
    let kinds: Vec<bool> = counts.iter().map(|count| number(count) > 0).collect();
    assert_eq!(
        kinds,
        [true, true, true, true, false, true, false, false, false],
        "all types except virtual hosts, those of ztunnels and single endpoints"
    );
    let storms = result["storms"].as_array().context("list the storms")?;
    let names: BTreeSet<&str> = storms.iter().filter_map(|storm| storm["name"].as_str()).collect();
    assert!(names.contains("reconnect") && names.contains("restart") && names.len() == 5, "{names:?}");
    for storm in storms {
        assert_eq!(number(&storm["missed"]), 0, "{storm}");
        let beside = &storm["beside"];
        if storm["name"] == "rush of other proxies" {
            let quiet = beside["quiet_ms"].as_array().context("changes before")?;
            assert!(!quiet.is_empty() && number(&storm["traffic"]["resources"][0]) > 0, "{storm}");
        } else if storm["name"] == "endpoints while mesh config changes for all" {
            let during = beside["storm_ms"].as_array().context("changes during it")?;
            let [endpoints, listeners] = [1, 2].map(|kind| number(&storm["traffic"]["resources"][kind]));
            assert_eq!((during.len(), endpoints), (5, 5 * 13), "each arrives at every proxy");
            assert!(listeners > endpoints, "{storm}");
        } else {
            assert_eq!(
                storm["traffic"]["resources"],
                json!([0, 0, 0, 0, 0, 0, 0, 0, 0]),
                "{} sends nothing",
                storm["name"]
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn mesh_with_sidecars_is_read_through_an_api() -> Result<()> {
    let kinds = "endpoint-address,scale-up,service-add,service-remove,vs,dr,mesh-config,sidecar,no-op,rolling-restart,\
                 secret-rotation";
    let result = run(&["--driver=kube", "--layout=scoped", "--changes", kinds, "--starts=2"]).await?;
    assert_eq!(result["starts_seconds"].as_array().context("list the starts")?.len(), 2);
    let changes = result["changes"].as_array().context("list the changes")?;
    assert_eq!(changes.len(), 11);
    for change in changes {
        assert_eq!(number(&change["rounds"][0]["missed"]), 0, "{}", change["kind"]);
    }
    let vs = changes.iter().find(|change| change["kind"] == "virtual-service").context("made")?;
    assert_eq!(number(&vs["affected"]), 6, "two of four namespaces see the service");
    Ok(())
}

#[tokio::test]
async fn endpoints_can_be_subscribed_one_by_one() -> Result<()> {
    let result = run(&["--endpoints-by-locality", "--changes=endpoint-address,scale-up,service-add"]).await?;
    for change in result["changes"].as_array().context("list the changes")? {
        assert_eq!(number(&change["rounds"][0]["missed"]), 0, "{}", change["kind"]);
    }
    let of_address = &result["changes"][0]["rounds"][0]["traffic"]["resources"];
    assert_eq!(*of_address, json!([0, 0, 0, 0, 0, 0, 0, 0, 13]), "no assignment is sent");
    Ok(())
}

#[tokio::test]
async fn virtual_hosts_can_be_subscribed_one_by_one() -> Result<()> {
    let result = run(&["--virtual-hosts", "--changes=vs,service-add,service-remove", "--storms=reconnect"]).await?;
    for change in result["changes"].as_array().context("list the changes")? {
        let round = &change["rounds"][0];
        assert_eq!(number(&round["missed"]), 0, "{}", change["kind"]);
        assert_eq!(number(&round["traffic"]["resources"][3]), 0, "{}: no table is sent", change["kind"]);
    }
    assert_eq!(result["changes"][0]["rounds"][0]["traffic"]["resources"], json!([0, 0, 0, 0, 12, 0, 0, 0, 0]));
    assert_eq!(result["storms"][0]["traffic"]["resources"], json!([0, 0, 0, 0, 0, 0, 0, 0, 0]));
    Ok(())
}

/// Runs the tool with these arguments. Returns its result and its output.
async fn result_of(arguments: &[&str]) -> Result<(Value, String)> {
    let directory = tempfile::tempdir()?;
    let json = directory.path().join("result.json");
    let output = Command::new(workspace_binary("sluice-bench")?)
        .args(arguments)
        .arg("--sluiced")
        .arg(workspace_binary("sluiced")?)
        .arg("--json")
        .arg(&json)
        .output()
        .await?;
    let output_text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{output_text}");
    Ok((serde_json::from_slice(&std::fs::read(&json)?)?, output_text))
}

#[tokio::test]
async fn server_after_soak_equals_fresh_server() -> Result<()> {
    let arguments = [
        "soak",
        "--services=44",
        "--namespaces=4",
        "--endpoints=3",
        "--proxies=8",
        "--duration=8s",
        "--reconnects=3",
        "--rate=15",
        "--growth=9",
        "--rest=0",
    ];
    let (result, output_text) = result_of(&arguments).await?;
    assert!(number(&result["compared"]) > 100 && number(&result["different"]) == 0, "{output_text}");
    assert!(number(&result["reconnects"]) > 5 && result["changes"].as_object().context("count")?.len() > 8);
    Ok(())
}

/// The faults, in groups that are injected at the same time.
const FAULTS: [&[&str]; 5] = [
    &["api-frozen", "api-connections-lost", "api-refused", "api-compacted", "api-not-found"],
    &["api-forbidden", "api-too-many-requests", "api-fails", "api-garbage", "api-other-kind"],
    &["token-service-hung", "server-paused", "server-terminated", "server-killed", "log-disk-full"],
    &["clock-jumps", "hostile-clients", "slow-clients"],
    &["task-panics", "fatal-panics"],
];

/// The library of Debian's package `libfaketime` that `clock-jumps` needs.
const FAKE_CLOCK: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

async fn faults_are_recovered_from(faults: &[&str]) -> Result<()> {
    let selected = format!("--faults={}", faults.join(","));
    let arguments = [
        "faults",
        &selected,
        "--services=22",
        "--namespaces=2",
        "--endpoints=3",
        "--proxies=20",
        "--rest=0",
        "--no-loopback",
        // A debug build on a busy machine.
        "--hold=2s",
        "--terminations=5",
        "--recovery=20s",
        "--growth=128",
    ];
    let (result, output_text) = result_of(&arguments).await?;
    let outcomes = result.as_array().context("list the outcomes")?;
    assert_eq!(outcomes.len(), faults.len(), "{output_text}");
    for outcome in outcomes {
        assert!(number(&outcome["compared"]) > 100, "{outcome}");
    }
    Ok(())
}

#[tokio::test]
async fn failing_connections_to_the_api_are_recovered_from() -> Result<()> {
    faults_are_recovered_from(FAULTS[0]).await
}

#[tokio::test]
async fn failing_answers_of_the_api_are_recovered_from() -> Result<()> {
    faults_are_recovered_from(FAULTS[1]).await
}

#[tokio::test]
async fn faults_of_the_server_are_recovered_from() -> Result<()> {
    faults_are_recovered_from(FAULTS[2]).await
}

#[tokio::test]
async fn faults_of_the_clock_and_of_clients_are_recovered_from() -> Result<()> {
    let mut faults = FAULTS[3].to_vec();
    if !Path::new(FAKE_CLOCK).exists() {
        // `make envoy` installs it, as root.
        assert!(std::env::var_os("CI").is_none(), "CI needs {FAKE_CLOCK}");
        eprintln!("clock-jumps is skipped: {FAKE_CLOCK} does not exist");
        faults.retain(|fault| *fault != "clock-jumps");
    }
    faults_are_recovered_from(&faults).await
}

#[tokio::test]
async fn panics_of_tasks_are_recovered_from() -> Result<()> {
    faults_are_recovered_from(FAULTS[4]).await
}

#[tokio::test]
async fn every_fault_is_injected() -> Result<()> {
    let output = Command::new(workspace_binary("sluice-bench")?).args(["faults", "--help"]).output().await?;
    let help = String::from_utf8(output.stdout)?;
    // A possible value of `--faults` is a line `- NAME: MEANING`.
    let (_, values) = help.split_once("--faults").context("the flag")?;
    let names = values.lines().map_while(|line| (!line.trim_start().starts_with("--")).then_some(line.trim_start()));
    let all: BTreeSet<&str> = names.filter_map(|line| Some(line.strip_prefix("- ")?.split_once(':')?.0)).collect();
    assert!(all.len() > 10, "{help}");
    assert_eq!(all, FAULTS.iter().copied().flatten().copied().collect(), "faults in groups");
    Ok(())
}

#[tokio::test]
async fn webhooks_answer_alone_and_while_changes_are_pushed() -> Result<()> {
    let arguments = [
        "webhooks",
        "--services=22",
        "--namespaces=2",
        "--endpoints=3",
        "--proxies=8",
        "--rate=50",
        "--duration=2s",
        "--rest=0",
        "--no-loopback",
        // Latencies are measured with a release build on an idle machine.
        "--limit=60000",
    ];
    let (result, output_text) = result_of(&arguments).await?;
    let rows = result["rows"].as_array().context("list the rows")?;
    let pushed = |row: &Value| number(&row["pushed"]) > 0;
    let measured: Vec<_> =
        rows.iter().map(|row| (row["webhook"].as_str(), pushed(row), number(&row["reviews"]))).collect();
    let [inject, validate] = [Some("inject"), Some("validate")];
    let expected = [(inject, false, 100), (inject, true, 100), (validate, false, 100), (validate, true, 100)];
    assert_eq!(measured, expected, "{output_text}");
    Ok(())
}

#[tokio::test]
async fn answers_are_measured() -> Result<()> {
    let arguments = [
        "answers",
        "--services=44",
        "--namespaces=4",
        "--endpoints=1",
        "--proxies=8",
        "--repeat=1",
        "--quiet=50",
        "--rest=0",
        "--no-loopback",
    ];
    let (result, output_text) = result_of(&arguments).await?;
    let answers = result["answers"].as_array().context("list the answers")?;
    assert_eq!(answers.len(), 18, "{output_text}");
    for answer in answers {
        let times = answer["rounds_ms"].as_array().context("list the times")?;
        let is_question = answer["question"].as_str().is_some_and(|question| !question.starts_with("no question"));
        assert!(times.len() == 1 && (number(&answer["bytes"]) > 100) == is_question, "{answer}");
    }
    Ok(())
}

#[tokio::test]
async fn overhead_compares_a_server_without_history_with_an_idle_and_a_watched_one() -> Result<()> {
    let arguments = [
        "overhead",
        "--services=22",
        "--namespaces=2",
        "--endpoints=1",
        "--proxies=3",
        "--repeat=1",
        "--changes=vs,service-add",
        "--idle=3s",
        "--quiet=50",
        "--rest=0",
        "--no-loopback",
        // CPU time is measured with a release build on an idle machine.
        "--idle-limit=1000",
        "--watched-limit=1000",
    ];
    let (result, output_text) = result_of(&arguments).await?;
    let rows = result["rows"].as_array().context("list the rows")?;
    let whats: Vec<_> = rows.iter().filter_map(|row| row["what"].as_str()).collect();
    assert_eq!(whats, ["no change, in a second", "virtual-service", "service-add", "all changes"]);
    for row in &rows[1..3] {
        let times = row["last_ms"].as_array().context("list the times")?;
        assert!(times.len() == 3 && times.iter().all(Value::is_f64), "{row}");
    }
    let cpu = |row: &Value, at: usize| row["cpu_seconds"][at].as_f64().unwrap_or_default();
    assert!((0..3).all(|at| cpu(&rows[3], at) > 0.0), "{}", rows[3]);
    assert!(output_text.contains("| watched : idle |"), "{output_text}");
    Ok(())
}

#[tokio::test]
async fn versus_compares_two_builds_in_one_run() -> Result<()> {
    let sluiced = workspace_binary("sluiced")?;
    let directory = tempfile::tempdir()?;
    let output = Command::new(workspace_binary("sluice-bench")?)
        .args(["versus", "--services=22", "--namespaces=2", "--endpoints=1", "--proxies=3", "--repeat=2"])
        .args(["--changes=vs,no-op", "--limit=1000", "--quiet=50", "--rest=0"])
        .arg("--before")
        .arg(&sluiced)
        .arg("--after")
        .arg(&sluiced)
        .arg("--out")
        .arg(directory.path())
        .output()
        .await?;
    let table = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{table}{}", String::from_utf8_lossy(&output.stderr));
    assert!(table.contains("| virtual-service last ms |") && table.contains("| connected RSS MiB |"), "{table}");
    assert!(directory.path().join("before.json").exists() && directory.path().join("after.json").exists());
    Ok(())
}

#[tokio::test]
async fn state_of_the_world_is_supported() -> Result<()> {
    let result = run(&["--protocol=sotw", "--changes=service-add,service-remove,vs,no-op"]).await?;
    for change in result["changes"].as_array().context("list the changes")? {
        assert_eq!(number(&change["rounds"][0]["missed"]), 0, "{}", change["kind"]);
    }
    Ok(())
}

#[tokio::test]
async fn invalid_arguments_are_named() -> Result<()> {
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
    let nothing_to_narrow = ["run", "--proxies=2", "--services=2", "--namespaces=1", "--changes=sidecar"];
    let output = bench()?.args(nothing_to_narrow).arg("--sluiced").arg(&sluiced).output().await?;
    assert!(String::from_utf8_lossy(&output.stderr).contains("sidecar needs more --namespaces than one"));
    Ok(())
}

#[tokio::test]
async fn changes_in_ambient_mode_reach_only_the_waypoint_and_the_ztunnels_that_they_concern() -> Result<()> {
    let ambient = ["--proxies=0", "--gateways=0", "--waypoints=4", "--ztunnels=2"];
    let kinds = "--changes=waypoint-endpoint,waypoint-route,workload,no-op";
    let result = run(&[&ambient[..], &[kinds]].concat()).await?;
    let changes = result["changes"].as_array().context("list the changes")?;
    let counts = |kind: &str| {
        let change = changes.iter().find(|change| change["kind"] == kind).expect("made");
        let round = &change["rounds"][0];
        let resources: Vec<u64> =
            round["traffic"]["resources"].as_array().expect("counts").iter().map(number).collect();
        (number(&change["affected"]), number(&round["missed"]), resources)
    };
    // CDS, EDS, LDS, RDS, VHDS, SDS, workload addresses, workload policies, LEDS.
    assert_eq!(counts("waypoint-endpoint"), (1, 0, vec![0, 1, 0, 0, 0, 0, 2, 0, 0]), "each ztunnel gets the workload");
    assert_eq!(counts("waypoint-route"), (1, 0, vec![0, 0, 1, 0, 0, 0, 0, 0, 0]));
    assert_eq!(
        counts("workload"),
        (2, 0, vec![0, 1, 0, 0, 0, 0, 2, 0, 0]),
        "the waypoint of the service gets the endpoint"
    );
    assert_eq!(counts("no-op"), (0, 0, vec![0; 9]));
    Ok(())
}
