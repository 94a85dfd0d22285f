//! Reads the node of a request: only what the server reads of it, and no more values than it accepts.

use prost::Message;
use sluice_proto::envoy::config::core::v3::{Extension, Node};

use crate::decode::{DecodeError, MessageSlice, merge};
use crate::limits::MAX_NODE_EXTENSIONS;

// Node.
const ID: u64 = 1;
const CLUSTER: u64 = 2;
const METADATA: u64 = 3;
const LOCALITY: u64 = 4;
const EXTENSIONS: u64 = 9;
const DYNAMIC_PARAMETERS: u64 = 12;
// google.protobuf.Struct and ListValue, the entries of a struct, and google.protobuf.Value.
const ELEMENTS: u64 = 1;
const ENTRY_VALUE: u64 = 2;
const STRUCT_VALUE: u64 = 5;
const LIST_VALUE: u64 = 6;
/// Levels of values that are counted. The decoder accepts fewer.
const MAX_VALUE_DEPTH: usize = 100;

/// What is read of an extension of Envoy.
#[derive(Message)]
struct ReadExtension {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bool, tag = "5")]
    disabled: bool,
}

/// Merges the `Node` in the slice into `node`. Its values are counted before they are decoded, because they take many times the bytes
/// that they have in the request. `values_left` is the number that the request may still have.
pub(crate) fn merge_node(node: &mut Node, values_left: &mut usize, slice: MessageSlice<'_>) -> Result<(), DecodeError> {
    for field in slice.fields_of_map(DYNAMIC_PARAMETERS) {
        let (field, value) = field?;
        match field {
            ID => node.id = value.text()?,
            CLUSTER => node.cluster = value.text()?,
            METADATA => {
                count_entries(value, values_left, MAX_VALUE_DEPTH)?;
                merge(node.metadata.get_or_insert_default(), value)?;
            }
            LOCALITY => merge(node.locality.get_or_insert_default(), value)?,
            EXTENSIONS if node.extensions.len() == MAX_NODE_EXTENSIONS => {
                return Err(DecodeError("the node has too many extensions"));
            }
            EXTENSIONS => {
                let mut read = ReadExtension::default();
                merge(&mut read, value)?;
                let ReadExtension { name, disabled } = read;
                node.extensions.push(Extension { name, disabled, ..Extension::default() });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Counts the values of a struct, nested ones included.
fn count_entries(fields: MessageSlice<'_>, left: &mut usize, depth: usize) -> Result<(), DecodeError> {
    for entry in fields.fields_of_map(ELEMENTS) {
        let (ELEMENTS, entry) = entry? else { continue };
        // An entry has a value, even if the bytes have none.
        take_value(left)?;
        for value in entry.fields() {
            if let (ENTRY_VALUE, value) = value? {
                count_nested(value, left, depth)?;
            }
        }
    }
    Ok(())
}

/// Counts the values in a value.
fn count_nested(value: MessageSlice<'_>, left: &mut usize, depth: usize) -> Result<(), DecodeError> {
    let depth = depth.checked_sub(1).ok_or(DecodeError("the metadata of the node is nested too deeply"))?;
    for kind in value.fields() {
        match kind? {
            (STRUCT_VALUE, fields) => count_entries(fields, left, depth)?,
            (LIST_VALUE, list) => {
                for element in list.fields() {
                    if let (ELEMENTS, element) = element? {
                        take_value(left)?;
                        count_nested(element, left, depth)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn take_value(left: &mut usize) -> Result<(), DecodeError> {
    *left = left.checked_sub(1).ok_or(DecodeError("the metadata of the node has too many values"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use sluice_model::MAX_NODE_VALUES;
    use sluice_proto::envoy::config::core::v3::{BuildVersion, Locality};
    use sluice_proto::google::protobuf::value::Kind;
    use sluice_proto::google::protobuf::{ListValue, Struct, Value};

    use super::*;

    fn read(node: &Node) -> Result<Node, DecodeError> {
        let bytes = Bytes::from(node.encode_to_vec());
        let (mut read, mut values_left) = (Node::default(), MAX_NODE_VALUES);
        merge_node(&mut read, &mut values_left, MessageSlice::new(&bytes)).map(|()| read)
    }

    fn value(kind: Kind) -> Value {
        Value { kind: Some(kind) }
    }

    fn with_metadata(field: Value) -> Node {
        let fields = BTreeMap::from([("FIELD".to_owned(), field)]).into_iter().collect();
        Node { metadata: Some(Struct { fields }), ..Node::default() }
    }

    #[test]
    fn only_fields_that_the_server_reads_are_kept() {
        let metadata = with_metadata(value(Kind::ListValue(ListValue { values: vec![value(Kind::NumberValue(1.0))] })));
        let kept = Node {
            id: "id".into(),
            cluster: "cluster".into(),
            locality: Some(Locality { region: "r".into(), zone: "z".into(), sub_zone: "s".into() }),
            extensions: vec![
                Extension { name: "on".into(), ..Extension::default() },
                Extension { name: "off".into(), disabled: true, ..Extension::default() },
            ],
            ..metadata
        };
        let mut sent = kept.clone();
        sent.user_agent_name = "envoy".into();
        sent.client_features = vec!["feature".into(); 100];
        for extension in &mut sent.extensions {
            extension.version = Some(BuildVersion::default());
            extension.type_urls = vec!["type".into(); 100];
        }
        assert_eq!(read(&sent), Ok(kept));
    }

    #[test]
    fn entries_that_only_prost_reads_as_values_are_rejected() {
        let with_fields = |entry: &[u8]| {
            let mut bytes = vec![3 << 3 | 2, u8::try_from(entry.len()).expect("short")];
            bytes.extend_from_slice(entry);
            Bytes::from(bytes)
        };
        let read = |bytes: &Bytes| {
            let (mut read, mut values_left) = (Node::default(), 1);
            merge_node(&mut read, &mut values_left, MessageSlice::new(bytes)).map(|()| read)
        };
        for wire_type in [0, 1, 5] {
            // The key `a` without a value.
            let bytes = with_fields(&[8 + wire_type, 3, 0x0a, 1, b'a']);
            let by_prost = Node::decode(bytes.clone()).expect("prost does not look at the wire type");
            assert_eq!(by_prost.metadata.expect("it is set").fields.len(), 1);
            assert_eq!(read(&bytes), Err(DecodeError::WIRE_TYPE_OF_MAP));
        }
        let parameters = Bytes::from_static(&[12 << 3, 3, 0x0a, 1, b'a']);
        assert_eq!(read(&parameters), Err(DecodeError::WIRE_TYPE_OF_MAP), "a map that is not read");
        let unknown = with_fields(&[2 * 8, 3]);
        assert!(read(&unknown).is_ok(), "other fields may have any wire type");
    }

    #[test]
    fn nodes_with_too_many_values_or_extensions_are_not_decoded() {
        let list = |count| with_metadata(value(Kind::ListValue(ListValue { values: vec![Value::default(); count] })));
        assert!(read(&list(MAX_NODE_VALUES - 1)).is_ok());
        assert_eq!(read(&list(MAX_NODE_VALUES)), Err(DecodeError("the metadata of the node has too many values")));
        let inner = value(Kind::StructValue(list(MAX_NODE_VALUES - 1).metadata.expect("it is set")));
        assert!(read(&with_metadata(inner)).is_err(), "nested values count");
        let extensions = |count| Node { extensions: vec![Extension::default(); count], ..Node::default() };
        assert!(read(&extensions(MAX_NODE_EXTENSIONS)).is_ok());
        assert_eq!(read(&extensions(MAX_NODE_EXTENSIONS + 1)), Err(DecodeError("the node has too many extensions")));
    }
}
