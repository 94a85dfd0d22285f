//! Runs the examples.

#[expect(dead_code, reason = "its `main` is not called")]
#[path = "../examples/config_directory.rs"]
mod config_directory;
#[expect(dead_code, reason = "its `main` is not called")]
#[path = "../examples/endpoints.rs"]
mod endpoints;
#[expect(dead_code, reason = "its `main` is not called")]
#[path = "../examples/status_controller.rs"]
mod status_controller;

#[test]
fn endpoints_follow_services_and_pods() {
    let expected = [
        "add shop/web: 10.0.0.1:80",
        "update shop/web: 10.0.0.1:80 10.0.0.2:80 10.0.0.3:80",
        "update shop/web: 10.0.0.2:80 10.0.0.3:80",
        "delete shop/web: 10.0.0.2:80 10.0.0.3:80",
    ];
    assert_eq!(endpoints::run().expect("it runs"), expected);
}

#[test]
fn records_and_problems_follow_the_files_of_a_directory() {
    let states = config_directory::run().expect("it runs");
    assert_eq!(states[0], ["web: 100 %"]);
    assert_eq!(states[1], ["api: 25 %", "web: 75 %"]);
    assert_eq!(states[2][..2], ["api: 25 %", "web: 75 %"]);
    assert!(states[2][2].starts_with("api.json: missing field `weight`"), "{states:?}");
    // 9 of 12 and 3 of 12.
    assert_eq!(states[3], ["api: 75 %", "web: 25 %"]);
    assert_eq!(states[4], ["api: 100 %"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_follow_services_and_pods() {
    let expected = ["1 of 1 pods are ready", "1 of 2 pods are ready", "0 of 1 pods are ready"];
    assert_eq!(status_controller::run().await.expect("it runs"), expected);
}
