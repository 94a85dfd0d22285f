//! Modules do not import each other in circles.
//!
//! At each module the modules below it are compared: an import from a file below `a` to a file below `b` is a
//! dependency of `a` on `b`. Modules that reach each other form a circle. Imports between a module and its own
//! submodules are fine.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, root};

/// A module as its path from the crate's root.
type Module = Vec<String>;

/// Imports between the children of a module, each with an example: (importing child, imported child).
type SiblingImports = BTreeMap<(String, String), (Module, Module)>;

/// Modules below `parent` that reach each other, and the imports between them.
#[derive(Debug, PartialEq)]
struct Circle {
    parent: Module,
    members: Vec<String>,
    imports: Vec<(Module, Module)>,
}

impl Circle {
    /// A line for each member.
    fn describe(&self, directory: &str) -> Vec<String> {
        let of = |member: &String| {
            let depth = self.parent.len();
            let imports = self.imports.iter().filter(|(from, _)| from[depth] == *member);
            let imports: Vec<String> =
                imports.map(|(from, to)| format!("{} imports {}", from.join("::"), to.join("::"))).collect();
            format!("{directory} [{}] {member}: {}", self.members.join(" "), imports.join(", "))
        };
        self.members.iter().map(of).collect()
    }
}

/// The modules of one crate with their code and the names they import.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<Module, String>,
    imports: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
}

#[test]
fn modules_import_each_other_in_one_direction() {
    let mut findings: Vec<String> = Vec::new();
    for (directory, sources) in crates() {
        for circle in Crate::new(sources).circles() {
            findings.extend(circle.describe(&directory));
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// Paths and texts of the files below the `src` of each package, without tests and binaries.
fn crates() -> BTreeMap<String, Vec<(Module, String)>> {
    let files: Vec<String> = files().iter().map(|file| file.display().to_string()).collect();
    let mut packages: Vec<&str> = files.iter().filter_map(|file| file.strip_suffix("Cargo.toml")).collect();
    packages.sort_by_key(|package| std::cmp::Reverse(package.len()));
    let mut out: BTreeMap<String, Vec<(Module, String)>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.ends_with(".rs")) {
        let package = packages.iter().find(|package| file.starts_with(**package)).expect("the root is a package");
        let Some(path) = file.strip_prefix(*package).and_then(|path| path.strip_prefix("src/")) else { continue };
        let mut module: Module = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if module.iter().any(|part| part == "tests" || part == "bin") {
            continue;
        }
        let has_library = files.contains(&format!("{package}src/lib.rs"));
        match module.as_slice() {
            [one] if one == "main" && has_library => continue,
            [one] if one == "main" || one == "lib" => module.clear(),
            _ => {}
        }
        let text = std::fs::read_to_string(root().join(file)).expect("read a source file");
        let directory = if package.is_empty() { "src" } else { package.trim_end_matches('/') };
        out.entry(directory.to_owned()).or_default().push((module, text));
    }
    out
}

impl Crate {
    fn new(sources: Vec<(Module, String)>) -> Self {
        let mut out = Self::default();
        for (module, text) in sources {
            out.modules.insert(module, without_tests(&text));
        }
        for (module, code) in &out.modules {
            let mut imports = BTreeMap::new();
            for path in used_paths(code) {
                let Some(absolute) = out.absolute(module, &path) else { continue };
                let name = absolute.last().cloned().unwrap_or_default();
                imports.insert(name, absolute);
            }
            out.imports.insert(module.clone(), imports);
        }
        out
    }

    /// A path from the crate's root, if it begins in this crate.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let mut base = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            _ => {
                let mut child = module.clone();
                child.push(first.clone());
                self.modules.contains_key(&child).then_some(child)?
            }
        };
        for part in rest {
            if part == "super" {
                base.pop()?;
            } else {
                base.push(part.clone());
            }
        }
        Some(base)
    }

    /// The module that defines what an absolute path names; re-exports are followed.
    fn definition(&self, path: &[String], depth: usize) -> Module {
        let mut module = Vec::new();
        for (index, part) in path.iter().enumerate() {
            let mut child = module.clone();
            child.push(part.clone());
            if self.modules.contains_key(&child) {
                module = child;
                continue;
            }
            let target = self.imports.get(&module).and_then(|imports| imports.get(part));
            if let Some(target) = target.filter(|target| depth < 8 && target.as_slice() != path) {
                let mut target = target.clone();
                target.extend_from_slice(&path[index + 1..]);
                return self.definition(&target, depth + 1);
            }
            break;
        }
        module
    }

    fn dependencies(&self) -> BTreeSet<(Module, Module)> {
        let mut out = BTreeSet::new();
        for (module, code) in &self.modules {
            for path in used_paths(code).into_iter().chain(inline_paths(code)) {
                if let Some(absolute) = self.absolute(module, &path) {
                    let target = self.definition(&absolute, 0);
                    if !module.starts_with(&target) && !target.starts_with(module) {
                        out.insert((module.clone(), target));
                    }
                }
            }
        }
        out
    }

    fn circles(&self) -> Vec<Circle> {
        let mut levels: BTreeMap<Module, SiblingImports> = BTreeMap::new();
        for (from, to) in self.dependencies() {
            let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            let edge = (from[shared].clone(), to[shared].clone());
            levels.entry(from[..shared].to_vec()).or_default().entry(edge).or_insert((from, to));
        }
        let mut out = Vec::new();
        for (parent, edges) in levels {
            let names: BTreeSet<&String> = edges.keys().flat_map(|(from, to)| [from, to]).collect();
            let reach: BTreeMap<&String, BTreeSet<&String>> =
                names.iter().map(|name| (*name, reachable(name, &edges))).collect();
            let mut reported = BTreeSet::new();
            for name in &names {
                let is_member = |other: &&&String| reach[*name].contains(**other) && reach[**other].contains(*name);
                let members: Vec<String> = names.iter().filter(is_member).map(|other| (*other).clone()).collect();
                if members.is_empty() || !reported.insert(members.clone()) {
                    continue;
                }
                let inner = edges.iter().filter(|((a, b), _)| members.contains(a) && members.contains(b));
                let imports = inner.map(|(_, import)| import.clone()).collect();
                out.push(Circle { parent: parent.clone(), members, imports });
            }
        }
        out
    }
}

fn reachable<'a>(start: &'a String, edges: &'a BTreeMap<(String, String), (Module, Module)>) -> BTreeSet<&'a String> {
    let mut out = BTreeSet::new();
    let mut queue = vec![start];
    while let Some(name) = queue.pop() {
        for (from, to) in edges.keys() {
            if from == name && out.insert(to) {
                queue.push(to);
            }
        }
    }
    out
}

/// The code without comments and without inline modules for tests.
fn without_tests(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            let mut item = lines.next().unwrap_or_default();
            while item.trim_start().starts_with('#') {
                item = lines.next().unwrap_or_default();
            }
            if item.trim_end().ends_with('{') {
                let indent = item.len() - item.trim_start().len();
                let end = format!("{}}}", " ".repeat(indent));
                for inner in lines.by_ref() {
                    if inner == end {
                        break;
                    }
                }
            }
            continue;
        }
        out.push_str(line.split("//").next().unwrap_or_default());
        out.push('\n');
    }
    out
}

/// The paths of all `use` declarations, one for each name.
fn used_paths(code: &str) -> Vec<Vec<String>> {
    let mut out = Vec::new();
    for line_start in code.match_indices("use ").map(|(index, _)| index) {
        let before = code[..line_start].rsplit('\n').next().unwrap_or_default().trim();
        let is_declaration =
            before.is_empty() || before == "pub" || (before.starts_with("pub(") && before.ends_with(')'));
        if !is_declaration {
            continue;
        }
        let Some((declaration, _)) = code[line_start + 4..].split_once(';') else { continue };
        expand(&[], declaration, &mut out);
    }
    out
}

/// Expands a use tree to paths.
fn expand(prefix: &[String], tree: &str, out: &mut Vec<Vec<String>>) {
    let tree = tree.trim().split(" as ").next().unwrap_or_default().trim();
    if tree.is_empty() {
        return;
    }
    let Some((path, group)) = tree.split_once('{').filter(|(path, _)| path.is_empty() || path.ends_with("::")) else {
        let mut path = prefix.to_vec();
        path.extend(
            tree.split("::").filter(|part| *part != "self" || prefix.is_empty()).map(|part| part.trim().to_owned()),
        );
        path.retain(|part| part != "*");
        out.push(path);
        return;
    };
    let mut path_parts = prefix.to_vec();
    path_parts.extend(path.split("::").filter(|part| !part.is_empty()).map(|part| part.trim().to_owned()));
    let group = group.trim_end().trim_end_matches('}');
    let (mut depth, mut start) = (0, 0);
    for (index, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&path_parts, &group[start..index], out);
                start = index + 1;
            }
            _ => {}
        }
    }
    expand(&path_parts, &group[start..], out);
}

/// Paths in expressions and types that begin with `crate`, `self` or `super`.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let is_part = |character: char| character.is_alphanumeric() || character == '_' || character == ':';
    let words = code.split(|character: char| !is_part(character));
    let paths = words.filter(|word| ["crate::", "self::", "super::"].iter().any(|start| word.starts_with(start)));
    paths.map(|path| path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()).collect()
}

#[test]
fn circles_are_found() {
    let module = |path: &str| path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect::<Module>();
    let sources = [
        ("", "mod a; mod b; mod c;\npub use b::inner::Thing;\n"),
        ("a", "use crate::b::{self, inner};\n"),
        ("b", "pub mod inner;\n"),
        ("b::inner", "use super::super::a::x as y;\n#[cfg(test)]\nmod tests {\n    use crate::c;\n}\n"),
        ("c", "fn f(_: crate::Thing) {}\n"),
    ];
    let sources = sources.iter().map(|(path, text)| (module(path), (*text).to_owned())).collect();
    let imports = vec![(module("a"), module("b")), (module("b::inner"), module("a"))];
    let members = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(Crate::new(sources).circles(), [Circle { parent: Vec::new(), members, imports }]);
}
