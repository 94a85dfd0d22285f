//! Tests of the functions.

use std::collections::BTreeMap;

use serde_json::json;
use sluice_template::{Scope, Template, Value};

use super::find;

#[track_caller]
fn check(source: &str, expected: &str) {
    let data = json!({
        "labels": {"app": "web", "tier": "front"},
        "values": {"requests": {"cpu": "100m", "none": null}, "empty": {"x": null}, "on": "yes", "n": 3},
        "nothing": null,
    });
    let environment = BTreeMap::from([("REGION".to_owned(), "eu".to_owned())]);
    let template = Template::parse("inject", source, find).expect(source);
    let text = template.execute(&Value::from_json(&data), &Scope::new(&environment));
    assert_eq!(text.as_deref(), Ok(expected), "{source}");
}

#[test]
fn functions_of_the_injector() {
    check("{{ isset .labels `app` }}{{ isset .labels `x` }}", "truefalse");
    check(
        "{{ valueOrDefault .labels.app `x` }}{{ valueOrDefault .labels.none `x` }}{{ valueOrDefault `` 1 }}",
        "webx1",
    );
    check(
        "{{ excludeInboundPort 15020 `80, 90` }} {{ excludeInboundPort `0` `80` }} {{ excludeInboundPort 80 `80` }}",
        "80,90,15020 80 80",
    );
    check("{{ excludeInboundPort 15020 `` }}", "15020");
    check("{{ directory `/etc/certs/ca.pem` }}{{ toLower `ABC` }}{{ contains `/` `a/b` }}", "/etc/certs/abctrue");
    check("{{ env `REGION` `x` }}{{ env `ZONE` `y` }}", "euy");
    check(
        "{{ toYaml .values | indent 2 }}",
        "empty:\n    x: null\n  \"n\": 3\n  \"on\": \"yes\"\n  requests:\n    cpu: 100m\n    none: null\n  ",
    );
    check("{{ toYaml (omitNil .values) }}", "\"n\": 3\n\"on\": \"yes\"\nrequests:\n  cpu: 100m\n");
    check("{{ toYaml (list (dict `a` (list 1 2)) (dict)) }}", "- a:\n  - 1\n  - 2\n- {}\n");
    check("{{ structToJSON .labels }}{{ structToJSON .nothing }}", "{\"app\":\"web\",\"tier\":\"front\"}{}");
    check("{{ toJsonMap (strdict `a` `1` `b`) (strdict `a` `2`) }}", "{\"a\":\"2\",\"b\":\"\"}");
    check("{{ omit (strdict `a` `1` `b` `2`) `a` }}", "map[b:2]");
    check("{{ (fromJSON `{\"a\":[1]}`).a }}{{ fromJSON `{` }}", "[1]{}");
}

#[test]
fn networks_of_multus_are_appended_once() {
    check("{{ appendMultusNetwork `` `default/istio-cni` }}", "default/istio-cni");
    check("{{ appendMultusNetwork `a, b` `default/istio-cni` }}", "a, b, default/istio-cni");
    check("{{ appendMultusNetwork `a,default/istio-cni` `default/istio-cni` }}", "a,default/istio-cni");
    let list = "[{\"name\": \"a\"}, {\"name\": \"istio-cni\", \"namespace\": \"default\"}]";
    check("{{ appendMultusNetwork `[{\"name\": \"a\"}]` `default/istio-cni` }}", list);
    check(&format!("{{{{ appendMultusNetwork `{list}` `default/istio-cni` }}}}"), list);
}
