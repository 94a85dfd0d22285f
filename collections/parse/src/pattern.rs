//! Checks of regular expressions that users write. They cost bounded time and memory, however long the expression is.
//!
//! Proxies match most of the expressions; here they are only checked, because a proxy rejects the whole resource that contains
//! an invalid one. An expression whose program is certainly small is not compiled. Expressions for the versions of proxies are
//! matched by the control plane and compiled here, once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use regex::RegexBuilder;
use regex_syntax::ast::parse::Parser as AstParser;
use regex_syntax::ast::{Ast, ClassPerlKind, ClassSetItem, Visitor, visit};
use regex_syntax::hir::translate::Translator;
use regex_syntax::hir::{Class, Hir, HirKind};
use sluice_model::{MAX_VERSION_PROGRAM_BYTES, Text, VersionPattern};

/// Maximum length of an expression. Envoy is started with a limit of 32,768 instructions for a program
/// (`re2.max_program_size.error_level`), about one for each character.
pub(crate) const MAX_PATTERN_BYTES: usize = 64 << 10;
/// Maximum size of a compiled program.
const MAX_PROGRAM_BYTES: usize = 10 << 20;
/// Maximum memory for the characters of classes such as `\w`, before an expression is compiled.
const MAX_CLASS_BYTES: usize = 4 << 20;
/// Maximum number of expressions of an object that are compiled to learn the size of their program.
const MAX_COMPILED_PATTERNS: usize = 16;
/// Maximum number of different expressions for versions in an object: they stay compiled in memory.
const MAX_VERSION_PATTERNS: usize = 32;

/// Why an expression is not accepted; displayed as a lower-case fragment.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum PatternError {
    #[error("a regular expression of {0} bytes is too long: at most {MAX_PATTERN_BYTES} are supported")]
    Length(usize),
    #[error("{0}")]
    Syntax(String),
    #[error("the regular expression is too large: its program exceeds {0} bytes")]
    Size(usize),
    #[error("too many large regular expressions: an object may have {MAX_COMPILED_PATTERNS}")]
    Number,
    #[error(
        "too many expressions for versions: an object may have {MAX_VERSION_PATTERNS} different ones, \
         further ones match no version"
    )]
    VersionNumber,
}

/// Checks the expressions of one object. Clones share what they count.
#[derive(Clone, Debug, Default)]
pub(crate) struct PatternChecker {
    compiled: Rc<Cell<usize>>,
    versions: Rc<RefCell<BTreeSet<Text>>>,
}

impl PatternChecker {
    /// Checks the syntax of an expression and the size of its program.
    pub(crate) fn check(&self, pattern: &str) -> Result<(), PatternError> {
        if pattern.len() > MAX_PATTERN_BYTES {
            return Err(PatternError::Length(pattern.len()));
        }
        if program_bytes(&parse(pattern, MAX_PROGRAM_BYTES)?) <= MAX_PROGRAM_BYTES {
            return Ok(());
        }
        if self.compiled.get() >= MAX_COMPILED_PATTERNS {
            return Err(PatternError::Number);
        }
        self.compiled.set(self.compiled.get() + 1);
        match RegexBuilder::new(pattern).size_limit(MAX_PROGRAM_BYTES).build() {
            Ok(_) => Ok(()),
            Err(_) => Err(PatternError::Size(MAX_PROGRAM_BYTES)),
        }
    }

    /// Compiles an expression that the control plane matches with the versions of proxies.
    pub(crate) fn compile_version(&self, pattern: &Text) -> Result<VersionPattern, PatternError> {
        parse(pattern, MAX_VERSION_PROGRAM_BYTES)?;
        let mut versions = self.versions.borrow_mut();
        if versions.len() >= MAX_VERSION_PATTERNS && !versions.contains(pattern) {
            return Err(PatternError::VersionNumber);
        }
        versions.insert(pattern.clone());
        VersionPattern::new(pattern.clone()).ok_or(PatternError::Size(MAX_VERSION_PROGRAM_BYTES))
    }
}

/// Parses an expression whose program may have `most` bytes.
fn parse(pattern: &str, most: usize) -> Result<Hir, PatternError> {
    let ast = AstParser::new().parse(pattern).map_err(|error| syntax(&error))?;
    if visit(&ast, ClassBytes(0)).unwrap_or_default() > MAX_CLASS_BYTES {
        return Err(PatternError::Size(most));
    }
    Translator::new().translate(pattern, &ast).map_err(|error| syntax(&error))
}

/// The last line of the error is the reason; the lines before it show the position.
fn syntax(error: &impl ToString) -> PatternError {
    let text = error.to_string();
    PatternError::Syntax(text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned())
}

/// Sums up the memory that classes of many characters will take.
struct ClassBytes(usize);

/// Size of the ranges of `\w` or of a class such as `\pL`.
const LARGE_CLASS_BYTES: usize = 6400;
/// Size of the ranges of `\d` and of `\s`.
const SMALL_CLASS_BYTES: usize = 640;

impl ClassBytes {
    fn add_perl(&mut self, kind: &ClassPerlKind) {
        self.0 += if *kind == ClassPerlKind::Word { LARGE_CLASS_BYTES } else { SMALL_CLASS_BYTES };
    }
}

impl Visitor for ClassBytes {
    type Output = usize;
    type Err = ();

    fn finish(self) -> Result<usize, ()> {
        Ok(self.0)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), ()> {
        match ast {
            Ast::ClassPerl(class) => self.add_perl(&class.kind),
            Ast::ClassUnicode(_) => self.0 += LARGE_CLASS_BYTES,
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), ()> {
        match item {
            ClassSetItem::Perl(class) => self.add_perl(&class.kind),
            ClassSetItem::Unicode(_) => self.0 += LARGE_CLASS_BYTES,
            _ => {}
        }
        Ok(())
    }
}

/// An upper estimate of the size of the program, without compiling it.
fn program_bytes(hir: &Hir) -> usize {
    /// Size of an instruction with what belongs to it.
    const INSTRUCTION_BYTES: usize = 64;
    /// Instructions for the UTF-8 bytes of a range of characters.
    const RANGE_INSTRUCTIONS: usize = 4;

    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => INSTRUCTION_BYTES,
        HirKind::Literal(literal) => INSTRUCTION_BYTES.saturating_mul(literal.0.len()),
        HirKind::Class(class) => {
            let ranges = match class {
                Class::Unicode(class) => class.ranges().len(),
                Class::Bytes(class) => class.ranges().len(),
            };
            INSTRUCTION_BYTES.saturating_mul(1 + RANGE_INSTRUCTIONS * ranges)
        }
        HirKind::Repetition(repetition) => {
            let times = repetition.max.unwrap_or(repetition.min.saturating_add(1)).max(1);
            let times = usize::try_from(times).unwrap_or(usize::MAX);
            (program_bytes(&repetition.sub).saturating_add(2 * INSTRUCTION_BYTES)).saturating_mul(times)
        }
        HirKind::Capture(capture) => program_bytes(&capture.sub).saturating_add(2 * INSTRUCTION_BYTES),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().fold(INSTRUCTION_BYTES, |sum, part| {
            sum.saturating_add(program_bytes(part)).saturating_add(INSTRUCTION_BYTES)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str) -> Result<(), PatternError> {
        PatternChecker::default().check(pattern)
    }

    #[test]
    fn estimate_is_above_the_size_of_the_program() {
        for pattern in [
            "a",
            "^/api/v[0-9]+/.*$",
            r"\w",
            r"\W",
            r"\d+\.\d+",
            r"\s*",
            r"\pL",
            r"\p{Greek}",
            "(?i)straße",
            "[^a]",
            ".",
            "(?s).",
            "(?i)[a-z]{3,9}",
            r"(\w{20}|\d{9}){3}",
            "(a|b|cd)*e?",
            r"\b[\w.]+@\w+\b",
            "",
            "(?:a{0,50}b){20}",
            "é€😀",
        ] {
            let estimate = program_bytes(&parse(pattern, MAX_PROGRAM_BYTES).expect("valid"));
            // The compiler counts a constant of its own.
            let built = RegexBuilder::new(pattern).size_limit(estimate + 4096).build();
            assert!(built.is_ok(), "{pattern}: {estimate}");
        }
    }

    #[test]
    fn invalid_and_large_expressions_are_rejected() {
        assert_eq!(check("("), Err(PatternError::Syntax("unclosed group".to_owned())));
        assert_eq!(check(r"(?P<a>.)(?P<a>.)"), Err(PatternError::Syntax("duplicate capture group name".to_owned())));
        assert_eq!(check(r"(?=a)").map_err(|error| error.to_string().contains("look-around")), Err(true));
        assert_eq!(check(&"a".repeat(MAX_PATTERN_BYTES + 1)), Err(PatternError::Length(MAX_PATTERN_BYTES + 1)));
        assert_eq!(check("(a{1000}){1000}"), Err(PatternError::Size(MAX_PROGRAM_BYTES)));
        assert_eq!(check(&r"\w".repeat(30_000)), Err(PatternError::Size(MAX_PROGRAM_BYTES)));
        assert_eq!(check(&"a".repeat(MAX_PATTERN_BYTES)), Ok(()));
        assert_eq!(
            check(&"(".repeat(MAX_PATTERN_BYTES)).map_err(|error| matches!(error, PatternError::Syntax(_))),
            Err(true)
        );
    }

    #[test]
    fn number_of_compiled_expressions_is_bounded() {
        let checker = PatternChecker::default();
        let large = r"\w{300}";
        for _ in 0..MAX_COMPILED_PATTERNS {
            assert_ne!(checker.check(large), Err(PatternError::Number));
        }
        assert_eq!(checker.check(large), Err(PatternError::Number));
        assert_eq!(checker.check("small"), Ok(()), "small ones are not compiled");
    }

    #[test]
    fn number_and_size_of_expressions_for_versions_are_bounded() {
        let checker = PatternChecker::default();
        let compile = |pattern: &str| checker.clone().compile_version(&pattern.into()).map(|_| ());
        assert!(matches!(compile("("), Err(PatternError::Syntax(_))));
        assert_eq!(compile(r"\w{300}"), Err(PatternError::Size(MAX_VERSION_PROGRAM_BYTES)));
        for n in 1..MAX_VERSION_PATTERNS {
            assert_eq!(compile(&format!("^1\\.{n}[0-9]+.*")), Ok(()));
        }
        assert_eq!(compile("one more"), Err(PatternError::VersionNumber));
        assert_eq!(compile("^1\\.1[0-9]+.*"), Ok(()), "the same one again");
    }
}
