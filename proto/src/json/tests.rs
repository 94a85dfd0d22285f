//! Decoding, rejected values and encoding.

use serde_json::json;

use super::*;
use crate::{
    envoy::config::cluster::v3::Cluster,
    google::protobuf::{BoolValue, Duration},
    istio::{
        mesh::v1alpha1::MeshConfig,
        networking::v1alpha3::{
            DestinationRule, EnvoyFilter, Gateway, ServerTlsSettings, VirtualService,
            server_tls_settings::TlSmode as TlsMode,
        },
    },
};

fn rejection<M: Message + Name + Default + fmt::Debug>(value: Value) -> String {
    decode::<M>(&value).expect_err("must be refused").to_string()
}

#[test]
fn both_spellings_are_accepted_and_unknown_fields_reported() {
    let value = json!({
        "hosts": ["a"], "export_to": ["."],
        "http": [{"corsPolicy": {"allow_credentials": true, "bogus": 1}, "timeout": "1500ms", "retries": null}],
        "extra": {},
    });
    let got = decode::<VirtualService>(&value).expect("valid");
    assert_eq!(got.unknown, ["extra", "http[0].corsPolicy.bogus"]);
    assert_eq!(got.message.export_to, ["."]);
    let http = &got.message.http[0];
    assert_eq!(http.timeout, Some(Duration { seconds: 1, nanos: 500_000_000 }));
    assert_eq!(http.retries, None);
    assert_eq!(http.cors_policy.as_ref().and_then(|c| c.allow_credentials), Some(BoolValue { value: true }));
}

#[test]
fn enums_are_accepted_by_name_or_number() {
    let mode = |value: Value| decode::<ServerTlsSettings>(&json!({"mode": value})).map(|d| d.message.mode());
    assert_eq!(mode(json!("MUTUAL")), Ok(TlsMode::Mutual));
    assert_eq!(mode(json!(2)), Ok(TlsMode::Mutual));
    assert_eq!(
        rejection::<ServerTlsSettings>(json!({"mode": "mutual"})),
        "mode: unknown value \"mutual\", \
         accepted: PASSTHROUGH, SIMPLE, MUTUAL, AUTO_PASSTHROUGH, ISTIO_MUTUAL, OPTIONAL_MUTUAL"
    );
}

#[test]
fn errors_name_the_field() {
    let cases = [
        (json!({"http": [{}, {"timeout": "5"}]}), "http[1].timeout: duration without a unit: \"5\""),
        (
            json!({"http": [{"route": [{"weight": "x"}]}]}),
            "http[0].route[0].weight: expected a whole number, got \"x\"",
        ),
        (json!({"http": [{"route": [{"weight": 1.5}]}]}), "http[0].route[0].weight: expected a whole number, got 1.5"),
        (
            json!({"tcp": [{"match": [{"port": -1}]}]}),
            "tcp[0].match[0].port: -1 is out of range; 0 to 4294967295 is accepted",
        ),
        (json!({"http": {}}), "http: expected a list, got an object"),
        (json!({"hosts": [3]}), "hosts[0]: expected a string, got 3"),
        (
            json!({"http": [{"match": [{"headers": {"k": {"exact": "a", "prefix": "b"}}}]}]}),
            "http[0].match[0].headers[k].prefix: only one of this field and exact may be set",
        ),
        (json!([]), "expected an object, got a list"),
    ];
    for (value, wanted) in cases {
        assert_eq!(rejection::<VirtualService>(value), wanted);
    }
}

#[test]
fn durations_are_accepted_in_both_syntaxes() {
    let cases = [
        ("1.5s", (1, 500_000_000)),
        ("1500ms", (1, 500_000_000)),
        ("36h", (129_600, 0)),
        ("1h30m", (5_400, 0)),
        ("0", (0, 0)),
        ("-1.5s", (-1, -500_000_000)),
        ("1.000000001s", (1, 1)),
        (".5m", (30, 0)),
        ("2µs", (0, 2_000)),
    ];
    for (text, wanted) in cases {
        assert_eq!(scalar::parse_signed_duration(text), Ok(wanted), "{text}");
    }
    for text in ["", "s", "1", "1d", "1..5s", "- 1s", "1s ", "99999999999999999999h", "é"] {
        assert!(scalar::parse_signed_duration(text).is_err(), "{text}");
    }
    assert_eq!(scalar::format_duration(1, 500_000_000), "1.500s");
    assert_eq!(scalar::format_duration(0, -1_000), "-0.000001s");
    assert_eq!(scalar::format_duration(36, 0), "36s");
}

#[test]
fn durations_of_zero_or_more_are_parsed_in_go_syntax() {
    use std::time::Duration;

    let check = |text: &str, expect: Option<Duration>| assert_eq!(parse_duration(text), expect, "{text}");
    check("10s", Some(Duration::from_secs(10)));
    check("1500ms", Some(Duration::from_millis(1500)));
    check("1.5s", Some(Duration::from_millis(1500)));
    check("36h", Some(Duration::from_secs(129_600)));
    check("1h30m", Some(Duration::from_secs(5400)));
    check("0", Some(Duration::ZERO));
    check("0.000001s", Some(Duration::from_micros(1)));
    for bad in ["", "5", "s", "-1s", "1d", "1.2.3s", "9999999999h", "1s5", ".s"] {
        check(bad, None);
    }
}

#[test]
fn timestamps_survive_the_round_trip() {
    for text in ["1970-01-01T00:00:00Z", "2026-02-28T23:59:59.250Z", "2000-02-29T12:00:00Z", "1969-12-31T23:59:59Z"] {
        let (seconds, nanos) = scalar::parse_timestamp(text).expect(text);
        assert_eq!(scalar::format_timestamp(seconds, nanos), text);
    }
    assert_eq!(scalar::parse_timestamp("2026-01-01T02:00:00+02:00"), scalar::parse_timestamp("2026-01-01T00:00:00Z"));
    for text in ["", "2026-01-01", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01T00:00:00+0200"] {
        assert!(scalar::parse_timestamp(text).is_err(), "{text}");
    }
}

#[test]
fn structs_survive_the_round_trip() {
    let patch = json!({"name": "x", "typed_config": {"@type": "y", "n": 1.5, "l": [null, true, {}], "big": 100_000}});
    let value = json!({"configPatches": [{"applyTo": "LISTENER", "patch": {"operation": "MERGE", "value": patch}}]});
    let got = decode::<EnvoyFilter>(&value).expect("valid");
    assert!(got.unknown.is_empty());
    assert_eq!(encode(&got.message), Ok(value));
}

#[test]
fn any_survives_the_round_trip() {
    let value = json!({
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": "c",
        "connectTimeout": "10s",
        "typedExtensionProtocolOptions": {
            "a": {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "v"},
            "b": {"@type": "type.googleapis.com/no.such.Type", "value": "AQI="},
        },
        "metadata": {"filterMetadata": {"istio": {"services": [{"host": "h"}]}}},
    });
    let (url, bytes) = decode_any(&value).expect("valid").message;
    assert_eq!(encode_any(&url, &bytes), value);
    let cluster = Cluster::decode(bytes.as_slice()).expect("a cluster");
    assert_eq!(cluster.name, "c");
    assert_eq!(encode_any("x/no.such", &[1]), json!({"@type": "x/no.such", "value": "AQ=="}));
    assert!(decode_any(&json!({"@type": "x/no.such", "a": 1})).is_err());
}

#[test]
fn recent_fields_of_the_api_are_known() {
    let ok = |unknown: Vec<String>| assert!(unknown.is_empty(), "{unknown:?}");
    ok(decode::<MeshConfig>(&json!({"defaultInboundHttpRetryPolicy": {"attempts": 3}})).expect("valid").unknown);
    ok(decode::<Gateway>(&json!({"servers": [{"tls": {"ecdhCurves": ["X25519"]}}]})).expect("valid").unknown);
    let rule = json!({"trafficPolicy": {"loadBalancer": {"backendUtilization": {}}}});
    ok(decode::<DestinationRule>(&rule).expect("valid").unknown);
}

#[test]
fn nesting_is_limited() {
    let mut value = json!(1);
    for _ in 0..500 {
        value = json!([value]);
    }
    let value = json!({"configPatches": [{"patch": {"value": {"a": value}}}]});
    assert!(rejection::<EnvoyFilter>(value).ends_with("nested too deeply"));
}

#[test]
fn numbers_are_accepted_in_every_form() {
    let got = decode::<ServerTlsSettings>(&json!({"mode": "1"}));
    assert!(got.is_err());
    let got =
        decode::<VirtualService>(&json!({"http": [{"route": [{"weight": "80"}, {"weight": 2e1}]}]})).expect("valid");
    let weights: Vec<i32> = got.message.http[0].route.iter().map(|r| r.weight).collect();
    assert_eq!(weights, [80, 20]);
}
