//! The question before changes.

use std::io::{self, BufRead, IsTerminal, Write};

/// Asks a question on the terminal. Without a terminal, there is nothing that could answer.
///
/// # Errors
/// Standard input is no terminal, or ends.
pub(crate) fn confirmed(question: &str, errors: &mut dyn Write) -> io::Result<bool> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(io::Error::other(
            "standard input is no terminal: --skip-confirmation makes changes without asking",
        ));
    }
    write!(errors, "{question} (y/N) ")?;
    errors.flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    let is_confirmed = is_yes(&answer);
    if !is_confirmed {
        writeln!(errors, "nothing was changed")?;
    }
    Ok(is_confirmed)
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_confirms() {
        assert!(is_yes("y\n") && is_yes(" Yes \n"));
        assert!(!is_yes("\n") && !is_yes("n\n") && !is_yes("yep\n"));
    }
}
