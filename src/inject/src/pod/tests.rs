//! Tests of merging and normalization.

use serde_json::{Value as Json, json};

use super::schema::POD;
use super::{canonical, merge, normalize, record};
use sluice_template::Value;

fn merged(original: &Json, patch: Json) -> Result<Json, String> {
    let mut pod = original.clone();
    let (Json::Object(fields), Json::Object(patch)) = (&mut pod, patch) else { panic!("objects") };
    merge(fields, patch, &POD)?;
    Ok(pod)
}

#[test]
fn lists_are_merged_by_their_key_in_the_order_of_the_patch() {
    let original = json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b"}, {"name": "c"}]}});
    let patch =
        json!({"spec": {"containers": [{"name": "new"}, {"name": "c", "image": "3"}, {"name": "a", "tty": true}]}});
    let pod = merged(&original, patch).expect("a valid patch");
    let expected = json!([
        {"name": "new"},
        {"name": "b"},
        {"name": "c", "image": "3"},
        {"name": "a", "image": "1", "tty": true},
    ]);
    assert_eq!(pod["spec"]["containers"], expected);
}

#[test]
fn each_list_has_its_own_key() {
    let original = json!({"spec": {
        "imagePullSecrets": [{"name": "x"}],
        "hostAliases": [{"ip": "1.1.1.1", "hostnames": ["a"]}],
        "tolerations": [{"key": "a"}],
        "containers": [{
            "name": "a",
            "args": ["old"],
            "ports": [{"containerPort": 80, "name": "http"}],
            "env": [{"name": "A", "value": "1"}],
            "volumeMounts": [{"mountPath": "/a", "name": "v"}],
        }],
    }});
    let patch = json!({"spec": {
        "imagePullSecrets": [{"name": "y"}],
        "hostAliases": [{"ip": "1.1.1.1", "hostnames": ["b"]}],
        "tolerations": [{"key": "b"}],
        "containers": [{
            "name": "a",
            "args": ["new"],
            "ports": [{"containerPort": 80, "protocol": "TCP"}],
            "env": [{"name": "A", "value": "2"}, {"name": "B"}],
            "volumeMounts": [{"mountPath": "/a", "readOnly": true}],
        }],
    }});
    let pod = merged(&original, patch).expect("a valid patch");
    let expected = json!({
        "imagePullSecrets": [{"name": "y"}, {"name": "x"}],
        "hostAliases": [{"ip": "1.1.1.1", "hostnames": ["b"]}],
        "tolerations": [{"key": "b"}],
        "containers": [{
            "name": "a",
            "args": ["new"],
            "ports": [{"containerPort": 80, "name": "http", "protocol": "TCP"}],
            "env": [{"name": "A", "value": "2"}, {"name": "B"}],
            "volumeMounts": [{"mountPath": "/a", "name": "v", "readOnly": true}],
        }],
    });
    assert_eq!(pod["spec"], expected);
}

#[test]
fn null_and_directives_remove() {
    let original = json!({"metadata": {"labels": {"a": "1", "b": "2"}, "finalizers": ["x"]}, "spec": {
        "containers": [{"name": "a"}, {"name": "b"}],
        "volumes": [{"name": "v"}],
        "securityContext": {"runAsUser": 1},
    }});
    let patch = json!({"metadata": {"labels": {"a": null}, "finalizers": ["y"]}, "spec": {
        "containers": [{"name": "a", "$patch": "delete"}, {"name": "c", "tty": null}],
        "volumes": [{"name": "w"}, {"$patch": "replace"}],
        "securityContext": {"$patch": "replace", "fsGroup": 2},
    }});
    let pod = merged(&original, patch).expect("a valid patch");
    let expected = json!({"metadata": {"labels": {"b": "2"}, "finalizers": ["y", "x"]}, "spec": {
        "containers": [{"name": "c"}, {"name": "b"}],
        "volumes": [{"name": "w"}],
        "securityContext": {"fsGroup": 2},
    }});
    assert_eq!(pod, expected);
}

#[test]
fn an_element_without_its_key_is_an_error() {
    let original = json!({"spec": {"containers": [{"name": "a"}]}});
    for list in [json!([{"image": "x"}]), json!([7])] {
        assert!(merged(&original, json!({"spec": {"containers": list}})).is_err());
    }
}

#[test]
fn merged_pods_are_checked_and_normalized() {
    let container = json!({
        "name": "a",
        "env": [{"name": "E", "value": ""}, {"name": "F", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}],
        "resources": {"limits": {"cpu": "2000m", "memory": 1024}},
        "readinessProbe": {"initialDelaySeconds": 0, "grpc": {"port": 1, "service": ""}},
    });
    let mut pod = json!({"metadata": {}, "spec": {"containers": [container, {"name": "b"}], "hostNetwork": false}});
    normalize(&mut pod).expect("a valid pod");
    let expected = json!([
        {
            "name": "a",
            "env": [
                {"name": "E"},
                {"name": "F", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}},
            ],
            "resources": {"limits": {"cpu": "2", "memory": "1024"}},
            "readinessProbe": {"grpc": {"port": 1, "service": ""}},
        },
        {"name": "b", "resources": {}},
    ]);
    assert_eq!(pod["spec"], json!({"containers": expected}));
    let invalid = [
        (json!({"spec": {"containers": 7}}), "spec.containers: expected a list, found number"),
        (json!({"metadata": {"labels": {"a": true}}}), "metadata.labels[a]: expected a string, found bool"),
        (json!({"spec": {"containers": [{"name": 1}]}}), "spec.containers[0].name: expected a string, found number"),
        (
            json!({"spec": {"containers": [{"name": "a", "args": [1]}]}}),
            "spec.containers[0].args: expected a list of strings",
        ),
    ];
    for (mut pod, reason) in invalid {
        let error = normalize(&mut pod).expect_err("an invalid pod");
        assert!(error.starts_with(reason), "{error}");
    }
}

#[test]
fn quantities_are_canonical() {
    let rows = [
        ("2000m", "2"),
        ("1024Mi", "1Gi"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        ("1.5Gi", "1536Mi"),
        ("100000", "100k"),
        ("1000Ki", "1000Ki"),
        ("0", "0"),
        ("1e3", "1e3"),
        ("1E", "1E"),
        ("-5m", "-5m"),
        ("1.5", "1500m"),
        ("12e6", "12e6"),
        ("4000000000000", "4T"),
        ("0.1n", "1n"),
        ("1023", "1023"),
        ("10Gi", "10Gi"),
        ("007", "7"),
    ];
    for (text, expected) in rows {
        assert_eq!(canonical(text).as_deref(), Ok(expected), "{text}");
    }
    for text in ["", "lots", "1x", ".", "1..2", "--1", "m", "1e99", "1Ki5"] {
        assert!(canonical(text).is_err(), "{text}");
    }
}

#[test]
fn records_have_zero_values_and_names_of_go() {
    let pod = record(&json!({"spec": {"hostPID": true, "containers": [{"name": "a"}]}}), &POD);
    let field = |value: &Value, name: &str| match value {
        Value::Object(object) => object.field(name),
        other => panic!("{other:?} is no object"),
    };
    let spec = field(&pod, "Spec").expect("a field").expect("a value");
    for (name, expected) in
        [("HostPID", "true"), ("ServiceAccountName", ""), ("NodeSelector", "map[]"), ("Volumes", "[]")]
    {
        assert_eq!(field(&spec, name).expect("a field").expect("a value").to_string(), expected, "{name}");
    }
    assert!(field(&spec, "NoSuchField").expect("a field").is_none());
    let context = field(&spec, "SecurityContext").expect("a field").expect("a value");
    assert!(!context.is_true());
    assert!(field(&context, "RunAsUser").is_err(), "a field of a null pointer");
}
