//! Path templates: `{*}` matches one path segment, `{**}` any number of segments.

/// Whether the path is a template.
#[must_use]
pub fn is_path_template(path: &str) -> bool {
    path.contains("{*}") || path.contains("{**}")
}

/// Checks a path that may be a template. The error is a lower-case fragment.
///
/// # Errors
/// The path has other braces, an operator after `{**}`, or a segment with characters that templates do not allow.
pub fn check_path_template(path: &str) -> Result<(), String> {
    let is_template = is_path_template(path);
    let literal = |part: &str| {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()+,;:@=".contains(&byte);
        !part.is_empty() && part.bytes().all(good)
    };
    let mut rest_taken = false;
    for part in path.trim_matches('/').split('/') {
        if part == "{*}" || part == "{**}" {
            if rest_taken {
                return Err(format!("`{path}`: `{{*}}` and `{{**}}` are not allowed after `{{**}}`"));
            }
            rest_taken = part == "{**}";
        } else if part.contains(['{', '}']) {
            return Err(format!("`{path}`: braces are only allowed in `{{*}}` and `{{**}}`"));
        } else if is_template && !literal(part) {
            return Err(format!("`{path}`: segment `{part}` is not allowed in a template"));
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
    }
}
