//! Paths with parts that vary: `{*}` is one part, `{**}` any number of them.

/// Whether the path has parts that vary.
#[must_use]
pub fn is_path_template(path: &str) -> bool {
    path.contains("{*}") || path.contains("{**}")
}

/// What is wrong with a path that may have parts that vary, as a lower-case fragment.
///
/// # Errors
/// Braces stand elsewhere, something varies behind `{**}`, or a part has characters that templates cannot have.
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
                return Err(format!("`{path}`: nothing that varies can follow `{{**}}`"));
            }
            rest_taken = part == "{**}";
        } else if part.contains(['{', '}']) {
            return Err(format!("`{path}`: braces stand only in `{{*}}` and `{{**}}`"));
        } else if is_template && !literal(part) {
            return Err(format!("`{path}`: `{part}` cannot be part of a template"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_path_template;

    #[test]
    fn templates_are_told_from_other_paths() {
        for good in ["/a", "*", "/a/{*}/b/{*}", "/{**}/end", "/", "/a b*"] {
            assert_eq!(check_path_template(good), Ok(()), "{good}");
        }
        for bad in ["/{**}/{*}", "/{**}/{**}", "/a{*}", "/{x}", "/{*}/a*", "/{*}//b"] {
            assert!(check_path_template(bad).is_err(), "{bad}");
        }
    }
}
