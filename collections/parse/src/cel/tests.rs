use super::{CelError, check_cel};

#[test]
fn expressions_of_access_logs_are_accepted() {
    for text in [
        "response.code >= 400",
        "response.code > 399 && !(request.path in ['/a', \"/b\"]) || has(request.headers)",
        "request.url_path.startsWith('/x') ? -1 : 2.5e3",
        "xds.cluster_name.contains(r'\\d') && size(request.host) % 2 == 0",
        "{'a': 1, 'b': [1, 2u, 0x1F]}['a'] == 1 // comment",
        "google.protobuf.Duration{seconds: 3} < duration('5s')",
        "'''many\nlines''' != b\"bytes\" && [1,].exists(x, x > .5)",
        "--1 == 1",
    ] {
        assert_eq!(check_cel(text), Ok(()), "{text}");
    }
}

#[test]
fn invalid_expressions_are_refused() {
    for text in [
        "",
        "response.code >",
        "response.code >= 400 400",
        "a &&& b",
        "f(a,)",
        "'open",
        "(a",
        "a.1",
        "let == 1",
        "a = b",
        "response.code >= 400 AND a",
        "-!a",
        "#",
    ] {
        assert!(check_cel(text).is_err(), "{text}");
    }
    assert!(check_cel(&"(".repeat(10_000)).is_err());
}

#[test]
fn argument_of_has_is_a_field_selection() {
    for text in [
        "has(request.headers)",
        "has((request.headers))",
        "has(a['b'].c)",
        "has(a.b().c)",
        "has(a.`b-c`)",
        "has(!!a.b)",
        "has(has(a.b))",
        "has({'a': 1}.a)",
        // These are other functions of the same name.
        "x.has(y['z'])",
        ".has(y['z'])",
        "has(a, b)",
    ] {
        assert_eq!(check_cel(text), Ok(()), "{text}");
    }
    for text in [
        "has(request.headers['x-y'])",
        "has(a.b[0])",
        "has(a)",
        "has('a')",
        "has(a.b())",
        "has(f(a.b))",
        "has(!a.b)",
        "has(a.b == 1)",
        "has(a ? b.c : d.e)",
        "has(a.?b)",
        "has([a.b])",
        "[1].exists(x, has(x['y']))",
    ] {
        assert_eq!(check_cel(text), Err(CelError::HasArgument), "{text}");
    }
}

#[test]
fn first_argument_of_a_loop_is_a_name() {
    for text in [
        "x.all(y, y > 1)",
        "x.exists((y), true)",
        "x.map(y, y > 1, y + 1)",
        // These are other functions of the same name.
        "x.all(1)",
        "all(1, true)",
        "x.map(1, 2, 3, 4)",
    ] {
        assert_eq!(check_cel(text), Ok(()), "{text}");
    }
    for (text, function) in [
        ("x.all(1, true)", "all"),
        ("x.exists(a.b, true)", "exists"),
        ("x.exists_one('y', true)", "exists_one"),
        ("x.filter(!y, true)", "filter"),
        ("x.map(.y, 1)", "map"),
        ("[1].map(f(), 1, 2)", "map"),
    ] {
        assert_eq!(check_cel(text), Err(CelError::LoopVariable(function.to_owned())), "{text}");
    }
}

#[test]
fn errors_name_the_place_and_what_is_expected() {
    let check = |text: &str, expected: &str| {
        assert_eq!(check_cel(text).map_err(|error| error.to_string()), Err(expected.to_owned()), "{text}");
    };
    check("a ==", "expected an operand at the end");
    check("(a b", "expected `)` before `b`");
    check("a 1", "expected the end of the expression before a literal");
    check("a.1", "expected the end of the expression before a literal");
    check("a.true", "expected a name before `true`");
    check("f(a,)", "expected an argument after `,`");
    check("let == 1", "`let` is a reserved word");
    check("#", "unexpected `#`");
    check(&"(".repeat(10_000), "nested deeper than 120 levels");
}
