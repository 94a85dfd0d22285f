//! Path templates: `{*}` matches one path segment, `{**}` any number of segments.

/// Whether the path is a template.
#[must_use]
pub fn is_path_template(path: &str) -> bool {
    path.contains("{*}") || path.contains("{**}")
}

/// Why a path is not a valid template; displayed as a lower-case fragment.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PathTemplateError {
    /// The path has an operator after `{**}`.
    #[error("`{0}`: `{{*}}` and `{{**}}` are not allowed after `{{**}}`")]
    OperatorAfterRest(String),
    /// The path has braces that are not an operator.
    #[error("`{0}`: braces are only allowed in `{{*}}` and `{{**}}`")]
    Braces(String),
    /// A segment of the template has characters that templates do not allow.
    #[error("`{path}`: segment `{segment}` is not allowed in a template")]
    Segment {
        /// The whole path.
        path: String,
        /// The invalid segment.
        segment: String,
    },
}

/// Checks a path that may be a template.
///
/// # Errors
/// The path has other braces, an operator after `{**}`, or a segment with characters that templates do not allow.
pub fn check_path_template(path: &str) -> Result<(), PathTemplateError> {
    let is_template = is_path_template(path);
    let literal = |part: &str| {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()+,;:@=".contains(&byte);
        !part.is_empty() && part.bytes().all(good)
    };
    let mut rest_taken = false;
    for part in path.trim_matches('/').split('/') {
        if part == "{*}" || part == "{**}" {
            if rest_taken {
                return Err(PathTemplateError::OperatorAfterRest(path.to_owned()));
            }
            rest_taken = part == "{**}";
        } else if part.contains(['{', '}']) {
            return Err(PathTemplateError::Braces(path.to_owned()));
        } else if is_template && !literal(part) {
            return Err(PathTemplateError::Segment { path: path.to_owned(), segment: part.to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_path_template;

    #[test]
    fn invalid_templates_are_rejected() {
        for good in ["/a", "*", "/a/{*}/b/{*}", "/{**}/end", "/", "/a b*"] {
            assert_eq!(check_path_template(good), Ok(()), "{good}");
        }
        for bad in ["/{**}/{*}", "/{**}/{**}", "/a{*}", "/{x}", "/{*}/a*", "/{*}//b"] {
            assert!(check_path_template(bad).is_err(), "{bad}");
        }
        let shown = |path: &str| check_path_template(path).map_err(|error| error.to_string());
        assert_eq!(shown("/{**}/{*}"), Err("`/{**}/{*}`: `{*}` and `{**}` are not allowed after `{**}`".to_owned()));
        assert_eq!(shown("/{x}"), Err("`/{x}`: braces are only allowed in `{*}` and `{**}`".to_owned()));
        assert_eq!(shown("/{*}/a*"), Err("`/{*}/a*`: segment `a*` is not allowed in a template".to_owned()));
    }
}
