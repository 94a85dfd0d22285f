use super::check;

const ROUTE: &str = "http: [{route: [{destination: {host: a}}]}]";

fn vs(table: &[(&str, &[&str])]) {
    let table: Vec<(String, &[&str])> =
        table.iter().map(|(spec, found)| (spec.replace("ROUTE", ROUTE), *found)).collect();
    let table: Vec<(&str, &[&str])> = table.iter().map(|(spec, found)| (spec.as_str(), *found)).collect();
    check("networking.istio.io/v1", "VirtualService", &table);
}

#[test]
fn hosts_gateways_and_visibility_are_checked() {
    vs(&[
        ("{hosts: [a.b, '*.c', 10.0.0.1], exportTo: ['.', other], ROUTE}", &[]),
        ("{hosts: [a_b.c], ROUTE}", &["R spec.hosts[0]"]),
        ("{hosts: [a.b, 'a..b'], ROUTE}", &["E spec.hosts[1]"]),
        ("{hosts: [a.7], ROUTE}", &["R spec.hosts[0]"]),
        ("{hosts: [a], gateways: [x/y, mesh], ROUTE}", &[]),
        ("{hosts: [a], gateways: [./y], ROUTE}", &["R spec.gateways[0]"]),
        ("{hosts: [a], gateways: [y.x], ROUTE}", &["W spec.gateways[0]"]),
        ("{hosts: [a], gateways: [x/y/z], ROUTE}", &["E spec.gateways[0]"]),
        ("{hosts: [a], exportTo: ['*', x], ROUTE}", &["R spec.exportTo"]),
        ("{hosts: [a], exportTo: ['~'], ROUTE}", &["R spec.exportTo[0]"]),
        ("{hosts: [a], exportTo: [shop, '.'], ROUTE}", &["R spec.exportTo[1]"]),
    ]);
}

/// Checks a route. Paths of findings are relative to `spec.http[0]`.
fn http(table: &[(&str, &[&str])]) {
    let table: Vec<(String, Vec<String>)> = table
        .iter()
        .map(|(route, found)| {
            let below =
                |path: &&str| format!("{} spec.http[0].{}", &path[..1], &path[2..]).trim_end_matches('.').to_owned();
            (format!("{{hosts: [a], http: [{route}]}}"), found.iter().map(below).collect())
        })
        .collect();
    let paths: Vec<Vec<&str>> = table.iter().map(|(_, found)| found.iter().map(String::as_str).collect()).collect();
    let table: Vec<(&str, &[&str])> =
        table.iter().zip(&paths).map(|((spec, _), found)| (spec.as_str(), found.as_slice())).collect();
    check("networking.istio.io/v1", "VirtualService", &table);
}

#[test]
fn matches_are_checked() {
    let with = |m: &str| format!("{{match: [{m}], route: [{{destination: {{host: a}}}}]}}");
    let table: Vec<(String, &[&str])> = vec![
        (with("{uri: {prefix: ''}, headers: {':path': {exact: a}, x-y: {regex: a+}}}"), &[]),
        (with("{headers: {'a b': {exact: c}}}"), &["R match[0].headers[a b]"]),
        (with("{headers: {a: null}}"), &["R match[0].headers[a]"]),
        (with("{headers: {a: {regex: '*'}}}"), &["R match[0].headers[a]"]),
        (with("{withoutHeaders: {a: {regex: '*'}}}"), &[]),
        (with("{queryParams: {a: {regex: '*'}}}"), &["R match[0].queryParams[a]"]),
        (with("{headers: {a: {prefix: ''}}}"), &["E match[0].headers[a]"]),
        (with("{method: {prefix: ''}}"), &["E match[0].method"]),
        (with("{uri: {regex: '(a'}}"), &["E match[0].uri"]),
        (with("{port: 65536}"), &["E match[0].port"]),
        (with("{sourceLabels: {'a b': c}}"), &["R match[0].sourceLabels"]),
        (with("{sourceLabels: {a: 'c d'}}"), &["R match[0].sourceLabels[a]"]),
        (with("{sourceNamespace: a.b}"), &["E match[0].sourceNamespace"]),
        (with("{gateways: [./x]}"), &["R match[0].gateways[0]"]),
        (with("{headers: {'@request.auth.claims.a': {exact: b}}}"), &["E match[0].headers"]),
        (with(&format!("{{uri: {{regex: {}}}}}", "a".repeat(1025))), &["R match[0].uri"]),
    ];
    let table: Vec<(&str, &[&str])> = table.iter().map(|(route, found)| (route.as_str(), *found)).collect();
    http(&table);
}

#[test]
fn route_actions_are_checked() {
    let with = |part: &str| format!("{{route: [{{destination: {{host: a}}}}], {part}}}");
    let table: Vec<(String, &[&str])> = vec![
        (with("timeout: 5s, retries: {attempts: 2, perTryTimeout: 1ms, retryOn: '5xx,503'}"), &[]),
        (with("timeout: 500us"), &["R timeout"]),
        (with("timeout: 1.0005s"), &["R timeout"]),
        (with("timeout: -1s"), &["E timeout"]),
        (with("retries: {attempts: 2, retryOn: '5xx, reset'}"), &["R retries.retryOn"]),
        (with("retries: {attempts: 2, retryOn: '599'}"), &["R retries.retryOn"]),
        (with("retries: {attempts: 2, retryOn: sometimes}"), &["E retries.retryOn"]),
        (with("headers: {request: {set: {a: '%REQ(b)%', ':authority': b}}}"), &[]),
        (with("headers: {request: {set: {a: '50%'}}}"), &["R headers.request.set[a]"]),
        (with("headers: {response: {add: {Host: a}}}"), &["E headers.response"]),
        (with("headers: {request: {remove: [':path']}}"), &["E headers.request.remove[0]"]),
        (with("rewrite: {authority: a}, headers: {request: {set: {Host: b}}}"), &["R headers.request"]),
        (with("rewrite: {uriRegexRewrite: {match: a, rewrite: ''}}"), &["R rewrite.uriRegexRewrite.rewrite"]),
        (with("corsPolicy: {allowOrigins: [{exact: ''}]}"), &["R corsPolicy.allowOrigins[0]"]),
        (with("corsPolicy: {allowMethods: [GET, get]}"), &["R corsPolicy.allowMethods[1]"]),
        (with("corsPolicy: {exposeHeaders: ['*', 'a b']}"), &["R corsPolicy.exposeHeaders[1]"]),
        (with("corsPolicy: {maxAge: 1.5s}"), &["E corsPolicy.maxAge"]),
        (with("fault: {abort: {httpStatus: 503, percentage: {value: 0.00001}}}"), &["R fault.abort.percentage"]),
        (with("fault: {abort: {percentage: {value: 1}}}"), &["W fault.abort"]),
        (with("fault: {delay: {exponentialDelay: 1s}}"), &["R fault.delay.exponentialDelay"]),
        (with("fault: {delay: {fixedDelay: 0s}}"), &["R fault.delay.fixedDelay"]),
        (with("mirror: {host: b}, mirrorPercent: 5"), &["W mirrorPercent"]),
        (with("mirrors: [{percentage: {value: 5}}]"), &["R mirrors[0].destination"]),
    ];
    let table: Vec<(&str, &[&str])> = table.iter().map(|(route, found)| (route.as_str(), *found)).collect();
    http(&table);
    http(&[
        ("{redirect: {uri: /x, port: 70000}}", &["R redirect.port"]),
        ("{redirect: {port: 80, derivePort: FROM_REQUEST_PORT}}", &["R redirect.derivePort"]),
        ("{match: [{uri: {exact: /a}}], redirect: {prefixRewrite: /b}}", &["R redirect.prefixRewrite"]),
        ("{match: [{uri: {prefix: /a}}], redirect: {prefixRewrite: /b}}", &[]),
        ("{route: [{weight: 1}]}", &["R route[0].destination"]),
        ("{route: [{destination: {host: '*'}}]}", &["E route[0].destination.host"]),
        ("{route: [{destination: {host: a_b}}]}", &["R route[0].destination.host"]),
        ("{route: [{destination: {host: a, subset: b.c}}]}", &["R route[0].destination.subset"]),
        ("{route: [{destination: {host: a, port: {number: 0}}}]}", &["E route[0].destination.port.number"]),
        ("{directResponse: {status: 99}}", &["E directResponse.status"]),
    ]);
}

#[test]
fn tls_and_tcp_routes_are_checked() {
    let to = "route: [{destination: {host: a}}]";
    let with = |m: &str| format!("{{hosts: [a.b, '*.c', 1.2.3.4], tls: [{{match: [{m}], {to}}}]}}");
    let table: Vec<(String, &[&str])> = vec![
        (with("{sniHosts: [x.c], port: 443}"), &[]),
        (with("{sniHosts: [x.d]}"), &["E spec.tls[0].match[0].sniHosts[0]"]),
        (with("{sniHosts: [1.2.3.4]}"), &["W spec.tls[0].match[0].sniHosts[0]"]),
        (with("{sniHosts: [a.b], port: 70000}"), &["R spec.tls[0].match[0].port"]),
        (
            with("{sniHosts: [a.b], destinationSubnets: [1.2.3.4/40]}"),
            &["E spec.tls[0].match[0].destinationSubnets[0]"],
        ),
        (with("{sniHosts: [a.b], sourceLabels: {a: b/c}}"), &["R spec.tls[0].match[0].sourceLabels[a]"]),
        (
            format!("{{hosts: [a.b], tcp: [{{match: [{{gateways: ['x/y z']}}], {to}}}]}}"),
            &["E spec.tcp[0].match[0].gateways[0]"],
        ),
    ];
    let table: Vec<(&str, &[&str])> = table.iter().map(|(spec, found)| (spec.as_str(), *found)).collect();
    check("networking.istio.io/v1", "VirtualService", &table);
}

#[test]
fn unreachable_routes_are_warnings() {
    let to = "route: [{destination: {host: a}}]";
    let with = |routes: &[&str]| {
        let routes: Vec<String> = routes.iter().map(|m| format!("{{{m}{to}}}")).collect();
        format!("{{hosts: [a], http: [{}]}}", routes.join(", "))
    };
    let one = "match: [{uri: {prefix: /a}}], ";
    let table: Vec<(String, &[&str])> = vec![
        (with(&["", one]), &["W spec.http[1]"]),
        (with(&[one, one]), &["W spec.http[1]", "W spec.http[1].match[0]"]),
        (with(&[one, "match: [{uri: {prefix: /ab}}], "]), &["W spec.http[1].match[0]"]),
        (with(&["match: [{uri: {prefix: /a}, headers: {x: {exact: y}}}], ", "match: [{uri: {prefix: /ab}}], "]), &[]),
        (with(&["match: [{uri: {prefix: /ab}}], ", one, ""]), &[]),
    ];
    let table: Vec<(&str, &[&str])> = table.iter().map(|(spec, found)| (spec.as_str(), *found)).collect();
    check("networking.istio.io/v1", "VirtualService", &table);
}
