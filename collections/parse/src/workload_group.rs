//! WorkloadGroup (S13).

use serde_json::Value;
use sluice_model::{Object, WorkloadGroup};

use crate::admission::{check_labels, is_port};
use crate::workload_entry::{check_socket, workload_address};
use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let mut group = WorkloadGroup { meta: item.meta(findings), ..WorkloadGroup::default() };
    if let Some(metadata) = fields.object("metadata") {
        group.labels = metadata.labels("labels");
        check_labels(&metadata, "labels", &group.labels);
        group.annotations = metadata.labels("annotations");
    }
    match fields.object("template") {
        // Each workload that joins has its own address.
        Some(template) => {
            group.template = workload_address(&template);
            check_socket(&template, "address", &group.template);
        }
        None => fields.reject("template", "`template` is required"),
    }
    if let Some(probe) = fields.object("probe") {
        group.health_checked = true;
        check_probe(&probe);
    }
    drop(fields);
    (!findings.has_errors()).then_some(Object::WorkloadGroup(group))
}

fn check_probe(fields: &Fields<'_>) {
    for name in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        fields.count(name);
    }
    let methods = ["httpGet", "tcpSocket", "exec", "grpc"].map(|name| fields.object(name));
    if methods.iter().flatten().count() != 1 {
        fields.refuse("", "exactly one of `httpGet`, `tcpSocket`, `exec` and `grpc` is required");
    }
    let [http, tcp, exec, grpc] = methods;
    if let Some(http) = http {
        check_port(&http);
        http.text("path");
        http.text("host");
        let scheme = http.text("scheme");
        if !matches!(scheme.as_str(), "" | "HTTP" | "HTTPS") {
            http.refuse("scheme", format!("expected `HTTP` or `HTTPS`, found `{scheme}`"));
        }
        for header in http.objects("httpHeaders") {
            let name = header.text("name");
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
                header.refuse("name", format!("`{name}` is not a valid header name"));
            }
            header.text("value");
        }
    }
    if let Some(tcp) = tcp {
        check_port(&tcp);
        tcp.text("host");
    }
    if let Some(exec) = exec
        && exec.texts("command").is_empty()
    {
        exec.refuse("command", "a command is required");
    }
    if let Some(grpc) = grpc {
        check_port(&grpc);
        grpc.text("service");
    }
}

fn check_port(fields: &Fields<'_>) {
    // A number out of range is reported as an invalid port.
    if !fields.value("port").and_then(Value::as_i64).is_some_and(is_port) {
        fields.refuse("port", "expected a port from 1 to 65535");
    }
}
