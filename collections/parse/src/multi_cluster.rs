//! ServiceExport and ServiceImport (S22).
//!
//! Other controllers write and validate these objects, so only the fields that are read are checked.

use std::net::IpAddr;

use sluice_model::{Object, ServiceExport, ServiceImport};

use crate::{Fields, Findings, Item};

pub(crate) fn parse_export(_: &Item<'_>, _: &Findings) -> Option<Object> {
    Some(Object::ServiceExport(ServiceExport))
}

pub(crate) fn parse_import(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    fields.ignore_rest();
    let mut ips = fields.texts("ips");
    ips.retain(|ip| {
        let is_ip = ip.parse::<IpAddr>().is_ok();
        if !is_ip {
            fields.reject("ips", format!("`{ip}` is not an IP address; it is ignored"));
        }
        is_ip
    });
    ips.sort();
    Some(Object::ServiceImport(ServiceImport { ips }))
}
