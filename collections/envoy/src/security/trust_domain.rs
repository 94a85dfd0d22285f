//! Trust domain aliases (P13).

use sluice_model::{DEFAULT_TRUST_DOMAIN, MeshConfig, Text};

/// The trust domain of the mesh, then its aliases.
#[derive(Clone, Debug)]
pub(super) struct TrustDomains<'a>(Vec<&'a str>);

impl<'a> TrustDomains<'a> {
    pub(super) fn of(mesh: &'a MeshConfig) -> Self {
        let all = std::iter::once(&mesh.trust_domain).chain(&mesh.trust_domain_aliases);
        Self(all.map(Text::as_str).collect())
    }

    /// Expands principals of the form `TRUST_DOMAIN/ns/NAMESPACE/sa/ACCOUNT` in the mesh's trust domain to all of its aliases;
    /// others stay unchanged.
    pub(super) fn of_principals(&self, principals: &[Text]) -> Vec<Text> {
        let mut all: Vec<Text> = Vec::new();
        for principal in principals {
            let parts: Vec<&str> = principal.split('/').collect();
            let [domain, rest @ ..] = parts.as_slice() else { continue };
            // In policies, the default trust domain stands for that of the mesh.
            let is_own = self.has(domain) || *domain == DEFAULT_TRUST_DOMAIN;
            if rest.len() != 4 || *domain == "*" || !is_own {
                all.push(principal.clone());
                continue;
            }
            let mut renamed: Vec<Text> = Vec::new();
            for name in &self.0 {
                // A wildcard already matches every alias.
                let pattern = matches_suffix(name, domain);
                let one = if pattern { principal.clone() } else { format!("{name}/{}", rest.join("/")).into() };
                if !renamed.contains(&one) {
                    renamed.push(one);
                }
            }
            all.extend(renamed);
        }
        all
    }

    /// Expands trust domains to the aliases of the mesh, without duplicates.
    pub(super) fn of_domains(&self, domains: &[Text]) -> Vec<Text> {
        let mut all: Vec<Text> = Vec::new();
        for domain in domains {
            let names: Vec<Text> = if self.0.contains(&domain.as_str()) {
                self.0.iter().map(|name| (*name).into()).collect()
            } else {
                vec![domain.clone()]
            };
            for name in names {
                if !all.contains(&name) {
                    all.push(name);
                }
            }
        }
        all
    }

    fn has(&self, domain: &str) -> bool {
        self.0.iter().any(|name| {
            domain == *name
                || *name == "*"
                || matches_prefix(domain, name)
                || matches_prefix(name, domain)
                || matches_suffix(domain, name)
                || matches_suffix(name, domain)
        })
    }
}

fn matches_prefix(text: &str, pattern: &str) -> bool {
    pattern.strip_suffix('*').is_some_and(|start| text.starts_with(start))
}

fn matches_suffix(text: &str, pattern: &str) -> bool {
    pattern.strip_prefix('*').is_some_and(|end| text.ends_with(end))
}

#[cfg(test)]
mod tests {
    use sluice_model::{MeshConfig, Text};

    use super::TrustDomains;

    fn mesh() -> MeshConfig {
        MeshConfig {
            trust_domain: "new-td".into(),
            trust_domain_aliases: vec!["old-td".into(), "older".into()],
            ..MeshConfig::default()
        }
    }

    fn principals(written: &str) -> Vec<String> {
        let mesh = mesh();
        TrustDomains::of(&mesh).of_principals(&[written.into()]).iter().map(Text::to_string).collect()
    }

    #[test]
    fn principals_of_the_mesh_are_expanded_to_aliases() {
        assert_eq!(principals("old-td/ns/a/sa/b"), ["new-td/ns/a/sa/b", "old-td/ns/a/sa/b", "older/ns/a/sa/b"]);
        assert_eq!(principals("cluster.local/ns/a/sa/b").len(), 3);
        assert_eq!(principals("*-td/ns/a/sa/b"), ["*-td/ns/a/sa/b", "older/ns/a/sa/b"]);
    }

    #[test]
    fn other_principals_are_unchanged() {
        for written in ["elsewhere/ns/a/sa/b", "*/ns/a/sa/b", "*", "sa/b", "a/b/c/d/e/f"] {
            assert_eq!(principals(written), [written]);
        }
    }

    #[test]
    fn trust_domains_are_expanded_without_duplicates() {
        let mesh = mesh();
        let domains = TrustDomains::of(&mesh);
        assert_eq!(
            domains.of_domains(&["older".into(), "x".into(), "new-td".into()]),
            ["new-td", "old-td", "older", "x"]
        );
        assert_eq!(domains.of_domains(&["*-td".into()]), ["*-td"]);
    }
}
