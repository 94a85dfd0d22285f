//! Whether an API server serves a kind, and in which version.
//!
//! Only discovery that says so makes a kind absent. Other answers, such as 404 of a proxy or of a server that starts, are
//! failures: the objects that were read stay.

use http::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::api::{Api, ApiError, Resource};
use crate::transport;

/// The answer of discovery about a kind.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Discovery<'a> {
    /// The kind is served in this version.
    Served(&'a str),
    /// The kind is not served in any of the versions.
    NotServed,
    /// Discovery did not answer; the reason.
    Unknown(String),
}

#[derive(Deserialize)]
struct Group {
    kind: String,
    name: String,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Deserialize)]
struct GroupList {
    kind: String,
    groups: Vec<GroupName>,
}

#[derive(Deserialize)]
struct GroupName {
    name: String,
}

#[derive(Deserialize)]
struct ResourceList {
    kind: String,
    resources: Vec<ResourceName>,
}

#[derive(Deserialize)]
struct ResourceName {
    name: String,
}

impl Api {
    /// The first of `versions` in which the API server serves the kind.
    pub async fn discover<'a>(&self, group: &str, plural: &str, versions: &[&'a str]) -> Discovery<'a> {
        match self.find_version(group, plural, versions).await {
            Ok(Some(version)) => Discovery::Served(version),
            Ok(None) => Discovery::NotServed,
            Err(reason) => Discovery::Unknown(reason),
        }
    }

    /// Whether the API server serves a collection.
    ///
    /// # Errors
    /// Discovery did not answer; the reason.
    pub(crate) async fn is_served(&self, resource: &Resource) -> Result<bool, String> {
        let kind = &resource.kind;
        let version = self.find_version(&kind.group, &kind.plural, &[kind.version.as_str()]).await?;
        Ok(version.is_some())
    }

    async fn find_version<'a>(
        &self,
        group: &str,
        plural: &str,
        versions: &[&'a str],
    ) -> Result<Option<&'a str>, String> {
        let served = self.group_versions(group).await?;
        for version in versions.iter().copied().filter(|version| served.iter().any(|it| it == version)) {
            let path = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
            let list: ResourceList = self.get(&path).await.map_err(|error| format!("{path}: {error}"))?;
            expect_kind(&path, &list.kind, "APIResourceList")?;
            if list.resources.iter().any(|resource| resource.name == plural) {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// The served versions of a group; none if the API server does not have the group.
    async fn group_versions(&self, group: &str) -> Result<Vec<String>, String> {
        if group.is_empty() {
            return Ok(vec!["v1".to_owned()]);
        }
        let path = format!("/apis/{group}");
        match self.get::<Group>(&path).await {
            Ok(found) => {
                expect_kind(&path, &found.kind, "APIGroup")?;
                expect_kind(&path, &found.name, group)?;
                Ok(found.versions.into_iter().map(|version| version.version).collect())
            }
            Err(ApiError::NotFound(_)) => {
                let list: GroupList = self.get("/apis").await.map_err(|error| format!("/apis: {error}"))?;
                expect_kind("/apis", &list.kind, "APIGroupList")?;
                match list.groups.iter().any(|found| found.name == group) {
                    true => Err(format!("{path} is not found although /apis has the group")),
                    false => Ok(Vec::new()),
                }
            }
            Err(error) => Err(format!("{path}: {error}")),
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let request = Request::get(path).body(Vec::new()).map_err(|error| ApiError::Other(error.to_string()))?;
        Ok(transport::request(&self.client, request).await?)
    }
}

fn expect_kind(path: &str, found: &str, expected: &str) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{path} is not {expected}")),
    }
}
