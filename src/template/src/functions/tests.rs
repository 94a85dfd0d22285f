//! Tests of the functions.

use std::collections::BTreeMap;

use serde_json::json;

use super::find;
use crate::{Scope, Template, Value};

#[track_caller]
fn check(source: &str, expected: &str) {
    let data = json!({
        "labels": {"app": "web", "tier": "front"},
        "values": {"requests": {"cpu": "100m", "none": null}, "n": 3},
        "nothing": null,
    });
    let template = Template::parse("test", source, find).expect(source);
    let text = template.execute(&Value::from_json(&data), &Scope::new(&BTreeMap::new()));
    assert_eq!(text.as_deref(), Ok(expected), "{source}");
}

#[test]
fn functions_of_texts() {
    check("{{ `a b` | quote }}{{ squote 1 `x` }}{{ quote .nothing }}", "\"a b\"'1' 'x'");
    check("{{ trunc 3 `abcdef` }}{{ trunc -2 `abcdef` }}{{ trunc 9 `é` }}", "abcefé");
    check("{{ trimAll `-_.` `-a.b_` }}{{ trimPrefix `v` `v1` }}{{ trimSuffix `.` `a.` }}", "a.b1a");
    check("{{ nindent 2 `a\nb` }}{{ indent 1 `a\nb` }}", "\n  a\n  b a\n b");
    check("{{ contains `/` `a/b` }}", "true");
    check("{{ default `x` `` }}{{ default `x` `y` }}{{ .nothing | default `z` }}", "xyz");
    check("{{ join `,` (list 1 `a` nil) }}{{ splitList `,` `a,b` }}{{ (split `/` `a/b`)._1 }}", "1,a[a b]b");
    check(
        "{{ replace `a` `b` `aa` }}{{ hasPrefix `a` `ab` }}{{ repeat 2 `x` }}{{ title `one two` }}",
        "bbtruexxOne Two",
    );
    check("{{ ternary 1 2 true }}{{ coalesce `` 0 `c` }}{{ empty `` }}{{ substr 1 3 `abcd` }}", "1ctruebc");
    check(
        "{{ kebabcase `FirstName` }} {{ snakecase `first name` }} {{ camelcase `first_name` }}",
        "first-name first_name FirstName",
    );
    check(
        "{{ printf `%05d|%-4s|%q|%v|%t|%.2f|%%` 42 `a` `b` (list 1) true 1.005 }}",
        "00042|a   |\"b\"|[1]|true|1.00|%",
    );
    check("{{ printf `%d` `x` }}{{ printf `%s` }}{{ printf `a` 1 }}", "%!d(string=x)%!s(MISSING)a%!(EXTRA int64=1)");
    check("{{ regexMatch `^a+$` `aaa` }}{{ regexReplaceAll `(a)b` `ab` `${1}c` }}", "trueac");
    check("{{ b64enc `hi` }}{{ b64dec `aGk=` }}{{ html `<a>` }}", "aGk=hi&lt;a&gt;");
}

#[test]
fn functions_of_lists_maps_and_numbers() {
    check("{{ first (list 1 2) }}{{ last (list 1 2) }}{{ rest (list 1 2) }}{{ initial (list 1 2) }}", "12[2][1]");
    check(
        "{{ append (list 1) 2 }}{{ prepend (list 1) 2 }}{{ uniq (list 1 1 2) }}{{ has 1 (list 1) }}",
        "[1 2][2 1][1 2]true",
    );
    check(
        "{{ without (list 1 2) 1 }}{{ compact (list `` `a`) }}{{ reverse (list 1 2) }}{{ sortAlpha (list `b` `a`) }}",
        "[2][a][2 1][a b]",
    );
    check("{{ until 3 }}{{ untilStep 0 10 5 }}{{ chunk 2 (list 1 2 3) }}", "[0 1 2][0 5][[1 2] [3]]");
    check(
        "{{ keys .labels }}{{ values .labels }}{{ hasKey .labels `app` }}{{ get .labels `x` }}",
        "[app tier][web front]true",
    );
    check(
        "{{ merge (dict `a` 1) (dict `a` 2 `b` 3) }}{{ mergeOverwrite (dict `a` 1) (dict `a` 2) }}",
        "map[a:1 b:3]map[a:2]",
    );
    // Empty values and null override, as they do in values of charts.
    check(
        "{{ mergeOverwrite (dict `a` true `b` (list 1)) (dict `a` false `b` list `c` nil) | toJson }}",
        "{\"a\":false,\"b\":[],\"c\":null}",
    );
    check("{{ merge (dict `a` false) (dict `a` true `b` nil) | toJson }}", "{\"a\":true}");
    check("{{ omit .labels `app` }}{{ toJson (list `<a>` `&`) }}", "map[tier:front][\"\\u003ca\\u003e\",\"\\u0026\"]");
    check(
        "{{ dig `requests` `cpu` `x` .values }}{{ dig `a` `b` `x` .values }}{{ pick .labels `app` }}",
        "100mxmap[app:web]",
    );
    check(
        "{{ add 1 2 3 }} {{ sub 5 2 }} {{ mul 2 3 }} {{ div 7 2 }} {{ mod 7 2 }} {{ max 1 3 }} {{ min 1 3 }}",
        "6 3 6 3 1 3 1",
    );
    check(
        "{{ int `7` }}{{ atoi `8` }}{{ .values.n | int }}{{ floor 1.7 }}{{ ceil 1.2 }}{{ round 1.256 2 }}",
        "783121.26",
    );
    check("{{ kindOf `a` }} {{ kindIs `map` .labels }} {{ typeOf 1 }}", "string true int64");
    check("{{ index `abc` 1 }} {{ slice `abc` 1 2 }} {{ slice (list 1 2 3) 1 }}", "98 b [2 3]");
    check("{{ lt 1 2 }}{{ ge `b` `a` }}{{ print 1 2 `a` 3 }}", "truetrue1 2a3");
}
