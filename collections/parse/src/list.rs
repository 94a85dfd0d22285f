//! Lists of objects, as `kubectl get -o yaml` writes them.

use serde_json::Value;

/// The objects of a document: the items of a list and of the lists in it, or the document itself.
///
/// The items of a typed list have no kind and apiVersion when the API server writes it. They get those of the list.
#[must_use]
pub fn list_items(document: Value) -> Vec<Value> {
    let mut objects = Vec::new();
    flatten(document, &mut objects);
    objects
}

fn flatten(document: Value, objects: &mut Vec<Value>) {
    let is_list = document.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List"));
    match document {
        Value::Object(mut fields) if is_list && fields.get("items").is_some_and(Value::is_array) => {
            let item_kind = fields.get("kind").and_then(Value::as_str).and_then(|kind| kind.strip_suffix("List"));
            let item_kind = item_kind.filter(|kind| !kind.is_empty()).map(str::to_owned);
            let api_version = fields.get("apiVersion").cloned();
            let Some(Value::Array(items)) = fields.remove("items") else { return };
            for mut item in items {
                if let (Value::Object(item), Some(kind)) = (&mut item, &item_kind) {
                    item.entry("kind").or_insert_with(|| kind.as_str().into());
                    if let Some(api_version) = &api_version {
                        item.entry("apiVersion").or_insert_with(|| api_version.clone());
                    }
                }
                flatten(item, objects);
            }
        }
        object => objects.push(object),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_of_lists_are_objects() {
        let typed = json!({"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}}]});
        let document = json!({"apiVersion": "v1", "kind": "List", "items": [typed, {"kind": "Service"}]});
        let expected =
            [json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}), json!({"kind": "Service"})];
        assert_eq!(list_items(document), expected);
        let no_list = json!({"kind": "AllowList", "spec": {}});
        assert_eq!(list_items(no_list.clone()), [no_list]);
    }
}
