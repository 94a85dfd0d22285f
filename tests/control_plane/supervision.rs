//! A source of files whose receiver of changes panics.

use serde_json::{Value, json};
use sluice_model::Kind;
use sluice_sources::Reporter;
use sluice_sources::files::FileSource;
use sluice_tasks::Tasks;
use tokio_util::sync::CancellationToken;

use crate::kube_suite::source::cluster;
use crate::kube_suite::supervision::PanickingSink;

fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn thread_of_a_directory_whose_receiver_panics_ends_the_process_with_its_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let sink = PanickingSink::new(Kind::Service);
    let mut files = FileSource::open(cluster(), directory.path(), Reporter::default()).expect("readable");
    files.load(&*sink, false).expect("valid");
    let mut guard = files.follow(sink.clone()).expect("a thread");
    let mut tasks = Tasks::new(CancellationToken::new());
    tasks.watch_thread(guard.end().expect("the first call"));
    sink.panic_next();
    std::fs::write(directory.path().join("service.yaml"), service("kettle").to_string()).expect("written");
    let failure = tasks.wait_for(std::future::pending::<()>()).await.expect_err("the thread has ended");
    assert_eq!(failure.to_string(), "task files-c: panicked: injected by the test");
}
