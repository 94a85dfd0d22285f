//! Tests of parsing and execution.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::{MissingKeys, Scope, Template, TemplateSet, Value, functions};
use crate::value::Function;

fn render(source: &str, data: &Json) -> Result<String, String> {
    let template = Template::parse("test", source, functions::find).map_err(|error| error.to_string())?;
    template.execute(&Value::from_json(data), &Scope::new(&BTreeMap::new())).map_err(|failure| failure.to_string())
}

#[track_caller]
fn check(source: &str, expected: &str) {
    let data = json!({
        "name": "web",
        "port": 8080,
        "large": 1_000_000,
        "on": true,
        "nothing": null,
        "list": ["a", "b", "c"],
        "map": {"x": 1, "y": {"z": "deep"}},
    });
    assert_eq!(render(source, &data).as_deref(), Ok(expected), "{source}");
}

#[track_caller]
fn fails(source: &str, reason: &str) {
    let error = render(source, &json!({"list": ["a"], "text": "t", "nothing": null})).expect_err(source);
    assert!(error.contains(reason), "{source}: {error}");
}

#[test]
fn actions_are_replaced_by_values() {
    check("a {{ .name }} b", "a web b");
    check("{{ .port }} {{ .large }} {{ .on }}", "8080 1e+06 true");
    check("{{ .map.y.z }}{{ (index .map \"y\").z }}", "deepdeep");
    check("{{ .list }} {{ .map }}", "[a b c] map[x:1 y:map[z:deep]]");
    check("{{ .missing }}|{{ .missing.field }}|{{ .nothing }}", "<no value>|<no value>|<no value>");
    check("{{/* a comment */}}x{{- /* trimmed */ -}} y", "xy");
    check("{{ `raw \\n` }}{{ \"tab\\t\\x41\\u00e9\" }}{{ 'a' }}", "raw \\ntab\tAé97");
    check("{{ 0x1f }} {{ -2 }} {{ 1.5 }} {{ 1e3 }} {{ true }}", "31 -2 1.5 1000 true");
}

#[test]
fn white_space_is_trimmed_beside_markers() {
    check("a \n {{- .name -}} \n b", "aweb b".replace(' ', "").as_str());
    check("a {{ .name -}} b", "a webb");
    check("{{- if .on }} yes {{- end }}", " yes");
    check("{{ -1 }}", "-1");
}

#[test]
fn conditions_and_loops() {
    check("{{ if .missing }}a{{ else if eq .name \"web\" }}b{{ else }}c{{ end }}", "b");
    check("{{ with .map.y }}{{ .z }}{{ $.name }}{{ end }}", "deepweb");
    check("{{ with .missing }}a{{ else with .name }}{{ . }}{{ end }}", "web");
    check("{{ range .list }}{{ . }},{{ end }}", "a,b,c,");
    check("{{ range $i, $v := .list }}{{ $i }}{{ $v }}{{ end }}", "0a1b2c");
    check("{{ range $k, $v := .map }}{{ $k }}{{ end }}{{ range 3 }}{{ . }}{{ end }}", "xy012");
    check("{{ range .missing }}a{{ else }}none{{ end }}", "none");
    check("{{ range .list }}{{ if eq . \"b\" }}{{ continue }}{{ end }}{{ . }}{{ end }}", "ac");
    check("{{ range .list }}{{ . }}{{ break }}{{ end }}", "a");
    check("{{ $x := 1 }}{{ range .list }}{{ $x = add $x 1 }}{{ end }}{{ $x }}", "4");
    check("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}", "21");
}

#[test]
fn templates_include_each_other() {
    check("{{ define \"t\" }}[{{ .z }}]{{ end }}{{ template \"t\" .map.y }}", "[deep]");
    check("{{ block \"b\" .name }}<{{ . }}>{{ end }}", "<web>");
    fails("{{ template \"unknown\" }}", "template \"unknown\" not defined");
    fails("{{ define \"t\" }}{{ template \"t\" }}{{ end }}{{ template \"t\" }}", "maximum template depth");
}

/// The functions of charts that the executor has.
fn find_with_include(name: &str) -> Option<Function> {
    match name {
        "include" => Some(Function::Include),
        "tpl" => Some(Function::Tpl),
        other => functions::find(other),
    }
}

#[test]
fn templates_of_a_set_include_each_other() {
    let set = TemplateSet::parse(
        [
            ("helpers", "{{ define \"t\" }}<{{ .name }}>{{ end }}{{ define \"u\" }}\n{{ .name.x }}{{ end }}"),
            ("main", "{{ include \"t\" . | upper }}{{ tpl \"{{ include `t` . }}!\" . }}"),
            ("bad", "{{ include \"u\" . }}"),
            ("whole", "[{{ include \"main\" . }}]"),
        ],
        find_with_include,
    );
    let set = set.expect("templates");
    let environment = BTreeMap::new();
    let scope = Scope { missing_keys: MissingKeys::Null, ..Scope::new(&environment) };
    let execute = |name: &str| set.execute(name, &Value::from_json(&json!({"name": "web"})), &scope);
    assert_eq!(execute("main").expect("it renders").as_deref(), Some("<WEB><web>!"));
    assert_eq!(execute("whole").expect("it renders").as_deref(), Some("[<WEB><web>!]"));
    assert_eq!(execute("none").expect("no failure"), None);
    assert_eq!(execute("t").expect("no failure"), None);
    let failure = execute("bad").expect_err("a field of a text").to_string();
    assert!(
        failure.starts_with("template: helpers:2:3: executing \"helpers\" at <.name.x>: can't evaluate"),
        "{failure}"
    );
    let set = TemplateSet::parse([("a", "{{ .x.y }}")], find_with_include).expect("a template");
    let failure = set.execute("a", &Value::from_json(&json!({})), &scope).expect_err("a field of null");
    assert_eq!(failure.reason(), "nil pointer evaluating interface {}.y");
}

#[test]
fn pipelines_pass_the_last_argument() {
    check("{{ .name | upper | printf \"%s-%s\" \"a\" }}", "a-WEB");
    check("{{ index .list 1 | quote }}", "\"b\"");
    check("{{ or .missing \"\" .name }} {{ and .name .missing }}", "web <no value>");
    check("{{ and false (fail \"not evaluated\") }}", "false");
    check("{{ not .missing }}{{ len .list }}{{ eq .name \"a\" \"web\" }}{{ ne .port 1.0 }}", "true3truetrue");
}

#[test]
fn a_map_that_a_variable_holds_is_changed_by_set() {
    check("{{ $m := dict \"a\" 1 }}{{ $_ := set $m \"b\" 2 }}{{ toJson $m }}", "{\"a\":1,\"b\":2}");
    check("{{ $m := dict \"a\" 1 }}{{ $_ := unset $m \"a\" }}{{ $m }}", "map[]");
}

#[test]
fn errors_name_line_and_cause() {
    fails("a\n{{ nosuch }}", "template: test:2: function \"nosuch\" not defined");
    fails("{{ $x }}", "undefined variable \"$x\"");
    fails("{{ if true }}", "unexpected end of the template in if");
    fails("{{ end }}", "unexpected {{end}}");
    fails("{{ \"a }}", "unterminated quoted string");
    fails("{{ .a", "unclosed action");
    fails("{{ (1 }}", "unclosed left parenthesis");
    fails("{{ break }}", "outside {{range}}");
    fails("x\n  {{ .text.field }}", "template: test:2:5: executing \"test\" at <.text.field>");
    fails("{{ .nothing.field }}", "nil pointer evaluating interface {}.field");
    fails("{{ range .text }}{{ end }}", "range can't iterate over t");
    fails("{{ eq .text 1 }}", "incompatible types for comparison");
    fails("{{ index .list 5 }}", "index out of range: 5");
    fails("{{ upper .missing }}", "invalid value; expected string");
    fails("{{ fail \"stop\" }}", "error calling fail: stop");
}

#[test]
fn work_is_bounded() {
    fails("{{ range 1000000000 }}x{{ end }}", "steps");
    fails("{{ range 3000 }}{{ range 3000 }}{{ end }}{{ end }}", "steps");
    fails("{{ $x := \"xxxxxxxx\" }}{{ range 60 }}{{ $x = print $x $x }}{{ end }}", "limit");
    fails("{{ $x := list 1 }}{{ range 60 }}{{ $x = concat $x $x }}{{ end }}", "limit");
    fails("{{ $x := list }}{{ range 1000 }}{{ $x = list $x }}{{ end }}{{ $x }}", "levels");
    fails("{{ $x := list 1 }}{{ range 60 }}{{ $x = list $x $x }}{{ end }}{{ $x }}", "limit");
    fails("{{ repeat 1000000000 \"abc\" }}", "limit");
    fails("{{ range 5000 }}{{ repeat 1000 \"x\" }}{{ end }}", "the output exceeds the limit");
    let nested = format!("{}{}", "{{ if true }}".repeat(1000), "{{ end }}".repeat(1000));
    fails(&nested, "nested actions");
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(1000), ")".repeat(1000));
    fails(&nested, "nested actions");
}
