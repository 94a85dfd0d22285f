//! The `describe` subcommand: everything that acts on a pod or a service (I08). The lines are those of istioctl where it has them.

mod rules;

use std::io::{self, Write};

use serde_json::Value;

use crate::answer_output::{elements, fail, joined, list, print, text};
use crate::connect::connect;
use crate::describe_args::{DescribeArgs, DescribeCommand};
use crate::terminal::{Colour, paint};
use rules::{destination_rule, virtual_services};

const EXIT_NOT_FOUND: u8 = 1;
const SEPARATOR: &str = "--------------------";

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(command: &DescribeCommand, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let (kind, name, shared, is_lenient) = match command {
        DescribeCommand::Pod(args) => ("pod", &args.name, &args.shared, args.ignore_unmeshed),
        DescribeCommand::Service(args) => ("service", &args.name, &args.shared, false),
    };
    let DescribeArgs { namespace, output, server } = shared;
    let parameters = [(kind, name.as_str()), ("namespace", namespace)];
    match connect(server).and_then(|server| server.get("describe", &parameters)) {
        Ok(answer) => {
            let lines = |answer: &Value, out: &mut dyn Write| match kind {
                "pod" => pod(answer, is_lenient, out),
                _ => service_answer(answer, out),
            };
            print(*output, &answer, out, lines).map(|()| 0)
        }
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

/// The name of an object without the namespace of what is described: `cart`, or `cart.shop`.
pub(super) fn short_name(object: &str, namespace: &str) -> String {
    match object.split('/').collect::<Vec<_>>()[..] {
        [_, of, name] if of == namespace => name.to_owned(),
        [_, of, name] => format!("{name}.{of}"),
        _ => object.to_owned(),
    }
}

/// `NAME.NAMESPACE` without the namespace of what is described.
fn without_namespace<'a>(name: &'a str, namespace: &str) -> &'a str {
    name.strip_suffix(namespace).and_then(|name| name.strip_suffix('.')).unwrap_or(name)
}

fn pod(answer: &Value, is_lenient: bool, out: &mut dyn Write) -> io::Result<()> {
    let full = text(answer, "pod");
    let (_, namespace) = full.rsplit_once('.').unwrap_or((full, ""));
    writeln!(out, "Pod: {full}")?;
    writeln!(out, "   Pod Revision: {}", text(answer, "revision"))?;
    let port = |port: &Value| {
        let protocol = Some(text(port, "protocol")).filter(|it| !matches!(*it, "" | "TCP"));
        let protocol = protocol.map(|it| format!("/{it}")).unwrap_or_default();
        let name = Some(text(port, "name")).filter(|name| !name.is_empty());
        format!("{}{protocol}{}", port["port"], name.map(|name| format!(" ({name})")).unwrap_or_default())
    };
    match list(answer, "ports") {
        [] => writeln!(out, "   Pod does not expose ports")?,
        ports => writeln!(out, "   Pod Ports: {}", ports.iter().map(port).collect::<Vec<_>>().join(", "))?,
    }
    writeln!(out, "   Service account: {}", text(answer, "serviceAccount"))?;
    writeln!(out, "   Mesh: {}", membership(answer))?;
    if !is_lenient {
        for warning in elements(&answer["warnings"]).iter().filter_map(Value::as_str) {
            writeln!(out, "{}: {warning}", paint(Colour::Warning, "WARNING"))?;
        }
    }
    for of in list(answer, "services") {
        writeln!(out, "{SEPARATOR}")?;
        service(of, namespace, out)?;
    }
    writeln!(out, "{SEPARATOR}")?;
    peer_authentication(&answer["peerAuthentication"], out)?;
    policies(answer, out)?;
    others(answer, out)?;
    for of in list(answer, "services") {
        gateways(of, namespace, out)?;
    }
    Ok(())
}

/// How a pod is part of the mesh, with its connection.
fn membership(answer: &Value) -> String {
    let connected = if answer["connected"] == true { "connected" } else { "not connected to this instance" };
    match text(answer, "mesh") {
        "none" => "none".to_owned(),
        "ambient" => "ambient, redirected to ztunnel".to_owned(),
        kind => format!("{kind}, {connected}"),
    }
}

fn service_answer(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    let name = text(answer, "service");
    let (_, namespace) = name.rsplit_once('.').unwrap_or((name, ""));
    service(answer, namespace, out)?;
    for warning in elements(&answer["warnings"]).iter().filter_map(Value::as_str) {
        writeln!(out, "{}: {warning}", paint(Colour::Warning, "WARNING"))?;
    }
    if !list(answer, "pods").is_empty() {
        writeln!(out, "{SEPARATOR}")?;
        writeln!(out, "Pods: {}", joined(answer, "pods", ", "))?;
        for (mode, pods) in answer["mutualTls"].as_object().into_iter().flatten() {
            writeln!(
                out,
                "   Workload mTLS mode: {mode} ({} of {})",
                elements(pods).len(),
                list(answer, "pods").len()
            )?;
        }
    }
    gateways(answer, namespace, out)
}

fn service(of: &Value, namespace: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "Service: {}", without_namespace(text(of, "service"), namespace))?;
    for port in list(of, "ports") {
        let name = Some(text(port, "name")).filter(|name| !name.is_empty());
        let name = name.map(|name| format!("{name} ")).unwrap_or_default();
        write!(out, "   Port: {name}{}/{}", port["port"], text(port, "protocol"))?;
        match &port["targetPort"] {
            Value::Number(target) => writeln!(out, " targets pod port {target}")?,
            _ => writeln!(out)?,
        }
        if let Some(warning) = port["warning"].as_str() {
            writeln!(out, "      WARNING: {warning}")?;
        }
    }
    if let Some(waypoint) = of["waypoint"].as_str() {
        writeln!(out, "   Waypoint: {waypoint}")?;
    }
    destination_rule(&of["destinationRule"], namespace, out)?;
    virtual_services(of, namespace, out)
}

fn peer_authentication(of: &Value, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "Effective PeerAuthentication:")?;
    let source = of["source"]["object"].as_str().unwrap_or("the default of the mesh");
    writeln!(out, "   Workload mTLS mode: {}", text(of, "mode"))?;
    if let Some(ports) = of["ports"].as_object() {
        writeln!(out, "   Port Level mTLS mode:")?;
        for (port, mode) in ports {
            writeln!(out, "      {port}: {}", mode.as_str().unwrap_or_default())?;
        }
    }
    writeln!(out, "   Decided by: {source}")?;
    let applied: Vec<String> = list(of, "applied").iter().map(|it| short_name(text(it, "object"), "")).collect();
    if !applied.is_empty() {
        writeln!(out, "Applied PeerAuthentication:\n   {}", applied.join(", "))?;
    }
    Ok(())
}

fn policies(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    if !list(answer, "authorizationPolicies").is_empty() {
        writeln!(out, "Applied AuthorizationPolicy:")?;
    }
    for policy in list(answer, "authorizationPolicies") {
        let provider = Some(text(policy, "provider")).filter(|name| !name.is_empty());
        let provider = provider.map(|name| format!(" by {name}")).unwrap_or_default();
        let dry_run = if policy["dryRun"] == true { ", dry run" } else { "" };
        let (action, name) = (text(policy, "action"), short_name(text(policy, "object"), ""));
        writeln!(out, "   {action}{provider}: {name} ({}{dry_run})", rule_count(&policy["rules"]))?;
    }
    if !list(answer, "requestAuthentications").is_empty() {
        writeln!(out, "Applied RequestAuthentication:")?;
    }
    for policy in list(answer, "requestAuthentications") {
        let name = short_name(text(policy, "object"), "");
        writeln!(out, "   {name} (issuers: {})", joined(policy, "issuers", ", "))?;
    }
    Ok(())
}

fn rule_count(count: &Value) -> String {
    match count.as_u64().unwrap_or_default() {
        1 => "1 rule".to_owned(),
        count => format!("{count} rules"),
    }
}

fn others(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    if let Some(sidecar) = answer["sidecar"]["object"].as_str() {
        writeln!(out, "Sidecar: {}", short_name(sidecar, ""))?;
    }
    if let Some(waypoint) = answer["waypoint"].as_str() {
        writeln!(out, "Waypoint: {waypoint}")?;
    }
    for extension in list(answer, "extensions") {
        let object = text(extension, "object");
        let kind = object.split('/').next().unwrap_or_default();
        writeln!(out, "{kind}: {}", short_name(object, ""))?;
    }
    Ok(())
}

/// The Gateways that expose a service, as istioctl prints them.
fn gateways(of: &Value, namespace: &str, out: &mut dyn Write) -> io::Result<()> {
    for gateway in list(of, "gateways") {
        writeln!(out, "{SEPARATOR}")?;
        for address in list(gateway, "addresses").iter().filter_map(Value::as_str) {
            writeln!(out, "Exposed on Ingress Gateway {address}")?;
        }
        writeln!(out, "Gateway: {}", short_name(gateway["object"]["object"].as_str().unwrap_or_default(), namespace))?;
        for server in list(gateway, "servers") {
            let (port, protocol) = (&server["port"], text(server, "protocol"));
            writeln!(out, "   Server: {port}/{protocol} for {}", joined(server, "hosts", ", "))?;
        }
        if list(gateway, "pods").is_empty() {
            writeln!(out, "   WARNING: it selects no pod")?;
        }
        writeln!(out, "   VirtualService: {}", short_name(text(gateway, "virtualService"), namespace))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn printed(print: impl Fn(&mut dyn Write) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out).expect("written");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn objects_of_the_same_namespace_have_no_namespace() {
        assert_eq!(short_name("VirtualService/shop/cart", "shop"), "cart");
        assert_eq!(short_name("VirtualService/shop/cart", "bank"), "cart.shop");
        assert_eq!(without_namespace("cart.shop", "shop"), "cart");
        assert_eq!(without_namespace("cart.workshop", "shop"), "cart.workshop");
    }

    #[test]
    fn service_has_the_lines_of_istioctl() {
        let to = |subset: &str, reaches: bool, problem: Option<&str>| json!({"host": "kettle.teashop.svc.cluster.local", "subset": subset, "weight": 90, "reaches": reaches, "problem": problem});
        let of = json!({
            "service": "kettle.teashop",
            "ports": [{"name": "http", "port": 80, "protocol": "HTTP", "targetPort": 8080}],
            "destinationRule": {
                "object": {"object": "DestinationRule/teashop/kettle-versions"}, "host": "kettle.teashop.svc.cluster.local",
                "matchingSubsets": ["v1"], "otherSubsets": ["v2", "v3"], "ports": {}, "subsets": {},
            },
            "virtualServices": [{
                "object": {"object": "VirtualService/teashop/kettle-routes"},
                "routes": [
                    {"field": "http[0]", "matches": ["/menu*"], "actions": [], "destinations": [to("v1", true, None)], "reaches": true},
                    {"field": "http[1]", "matches": [], "actions": [], "destinations": [to("v2", false, Some("non-matching subset"))], "reaches": false},
                ],
            }],
        });
        let expected = "\
Service: kettle
   Port: http 80/HTTP targets pod port 8080
DestinationRule: kettle-versions for \"kettle.teashop.svc.cluster.local\"
   Matching subsets: v1
      (Non-matching subsets v2,v3)
   No Traffic Policy
VirtualService: kettle-routes
   Route to host \"kettle.teashop.svc.cluster.local\" subset \"v1\" with weight 90%
   Match: /menu*
   1 additional destination(s) that will not reach this pod
";
        assert_eq!(printed(|out| service(&of, "teashop", out)), expected);
    }

    #[test]
    fn mutual_tls_has_its_source() {
        let of = json!({
            "mode": "STRICT", "ports": {"8080": "DISABLE"},
            "source": {"object": "PeerAuthentication/shop/default"},
            "applied": [{"object": "PeerAuthentication/shop/default"}],
        });
        let expected = "\
Effective PeerAuthentication:
   Workload mTLS mode: STRICT
   Port Level mTLS mode:
      8080: DISABLE
   Decided by: PeerAuthentication/shop/default
Applied PeerAuthentication:
   default.shop
";
        assert_eq!(printed(|out| peer_authentication(&of, out)), expected);
    }
}
