//! Route configurations without their virtual hosts.

use bytes::{BufMut as _, Bytes, BytesMut};
use envoy_types::pb::envoy::config::route::v3::{RouteConfiguration, Vhds};
use envoy_types::pb::google::protobuf::BoolValue;
use prost::encoding::{decode_varint, encode_varint};
use sluice_proto::wire::put_field;

use crate::config_source::ads_source;
use crate::wire::{encode, uint32};

/// Kind of a route configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TableKind {
    /// It has virtual hosts.
    Full,
    /// A proxy has requested it, but it does not exist.
    Absent,
}

/// Maximum body of a direct response, the limit in the validation of VirtualServices.
const MAX_DIRECT_RESPONSE_BODY_BYTES: u32 = 1 << 20;

/// A route configuration without virtual hosts.
#[must_use]
pub fn build_header(name: &str, kind: TableKind) -> RouteConfiguration {
    let full = kind == TableKind::Full;
    RouteConfiguration {
        name: name.into(),
        validate_clusters: Some(BoolValue { value: false }),
        max_direct_response_body_size_bytes: full.then(|| uint32(MAX_DIRECT_RESPONSE_BODY_BYTES)),
        ignore_port_in_host_matching: full,
        ..RouteConfiguration::default()
    }
}

/// An encoded route configuration without virtual hosts, which makes the proxy request them by VHDS.
#[must_use]
pub fn by_virtual_host(header: &[u8]) -> Bytes {
    let vhds = Some(Vhds { config_source: Some(ads_source()) });
    // In protobuf, the concatenation of two encoded messages is their merged message.
    let rest = encode(&RouteConfiguration { vhds, ..RouteConfiguration::default() });
    [header, &rest].concat().into()
}

/// An encoded route configuration for a gRPC client without an Envoy, with these encoded virtual hosts.
#[must_use]
pub fn grpc_table<'a>(name: &str, virtual_hosts: impl IntoIterator<Item = &'a [u8]>) -> Bytes {
    // Field number of `RouteConfiguration.virtual_hosts`.
    const VIRTUAL_HOSTS: u32 = 2;
    let mut out = encode(&RouteConfiguration { name: name.into(), ..RouteConfiguration::default() }).to_vec();
    virtual_hosts.into_iter().for_each(|host| put_field(VIRTUAL_HOSTS, host, &mut out));
    out.into()
}

/// An encoded virtual host with another name. Envoy removes a virtual host by the name in the message, so that name must
/// be equal to the name of the resource.
#[must_use]
pub fn renamed(virtual_host: &[u8], name: &str) -> Bytes {
    // Tag of `VirtualHost.name`, which is the first field.
    const NAME: u8 = 0x0a;
    let mut rest = virtual_host;
    if let Some((&NAME, mut after)) = virtual_host.split_first()
        && let Ok(len) = decode_varint(&mut after)
        && let Some(unnamed) = usize::try_from(len).ok().and_then(|len| after.get(len..))
    {
        rest = unnamed;
    }
    let mut out = BytesMut::with_capacity(name.len() + rest.len() + 4);
    out.put_u8(NAME);
    encode_varint(name.len() as u64, &mut out);
    out.put_slice(name.as_bytes());
    out.put_slice(rest);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::route::v3::VirtualHost;
    use prost::Message as _;

    use super::*;

    #[test]
    fn virtual_host_is_renamed() {
        let host = VirtualHost { name: "a".into(), domains: vec!["a".into(), "b".into()], ..VirtualHost::default() };
        for old in [host.clone(), VirtualHost { name: String::new(), ..host.clone() }] {
            let other = VirtualHost::decode(renamed(&encode(&old), "80/a")).expect("a virtual host");
            assert_eq!(other, VirtualHost { name: "80/a".into(), ..host.clone() });
        }
    }

    #[test]
    fn grpc_table_has_the_virtual_hosts() {
        let host = VirtualHost { name: "a:80".into(), domains: vec!["a".into()], ..VirtualHost::default() };
        let table =
            RouteConfiguration::decode(grpc_table("outbound|80||a", [encode(&host).as_ref()])).expect("a table");
        assert_eq!((table.name.as_str(), table.virtual_hosts.as_slice()), ("outbound|80||a", [host].as_slice()));
    }

    #[test]
    fn vhds_table_equals_the_table_with_its_vhds_config() {
        let header = build_header("80", TableKind::Full);
        let table = RouteConfiguration::decode(by_virtual_host(&encode(&header))).expect("a table");
        assert!(table.vhds.is_some());
        assert_eq!(RouteConfiguration { vhds: None, ..table }, header);
    }
}
