//! Files of one crate that import each other in a circle. They can only be read, tested and moved together.
//!
//! An import is any path to another file of the crate: `use` declarations and paths in code, through `crate`, `super`,
//! `self`, or the name of a module. A path through a re-export leads to the file that defines the item. `mod` alone is
//! no import, and test code is not counted.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;

use longhaul_rules::{Layers, assert_none, crate_and_path, is_word, path_from, rust_files, tokens};

/// The size of the largest circle of each crate that has one. Numbers may only fall: when one does, lower it here.
const LARGEST_CIRCLES: &[(&str, usize)] = &[
    ("cli", 3),
    ("coding", 3),
    ("conformance", 2),
    // One state machine in three files.
    ("congestion", 2),
    ("impair", 2),
    ("longhaul", 2),
    ("netsim", 2),
    ("interop", 2),
    ("perf", 2),
    ("plan", 2),
    ("rdmacore", 4),
    // C structures that point at each other.
    ("verbs-abi", 4),
    // A message and its list.
    ("reliable", 2),
    ("runtime", 3),
    ("scheme-testing", 3),
    ("softnic", 4),
    ("verbs", 2),
    ("wire", 3),
    ("world", 2),
];

/// A path in the code of one file, and the module that it stands in.
struct NamedPath {
    module: Vec<String>,
    segments: Vec<String>,
}

/// What one file declares and names, without its tests.
#[derive(Default)]
struct File {
    children: Vec<String>,
    paths: Vec<NamedPath>,
    /// What `use` makes known in a module: the name, and the path behind it.
    bindings: BTreeMap<(Vec<String>, String), Vec<String>>,
}

impl File {
    fn read(module: &[String], source: &str) -> File {
        let code = Layers::of(source).code.join("\n");
        let tokens = without_tests(&tokens(&code));
        let mut file = File::default();
        let mut here = module.to_vec();
        // Where inline modules end.
        let (mut depth, mut inline) = (0, Vec::new());
        let mut at = 0;
        while at < tokens.len() {
            match tokens[at..] {
                ["mod", name, ";", ..] => {
                    file.children.push(name.to_owned());
                    at += 3;
                }
                ["mod", name, "{", ..] => {
                    here.push(name.to_owned());
                    inline.push(depth);
                    depth += 1;
                    at += 3;
                }
                ["{", ..] => (depth, at) = (depth + 1, at + 1),
                ["}", ..] => {
                    (depth, at) = (depth - 1, at + 1);
                    if inline.last() == Some(&depth) {
                        inline.pop();
                        here.pop();
                    }
                }
                // Who sees an item; that is no import.
                ["pub", "(", ..] => at = group_end(&tokens, at + 1),
                ["use", ..] => {
                    let mut found = Vec::new();
                    bindings_from(&tokens, at + 1, &[], &mut found);
                    file.bindings.extend(found.into_iter().map(|(name, path)| ((here.clone(), name), path)));
                    at += 1;
                }
                _ => {
                    let mut found = Vec::new();
                    at = path_from(&tokens, at, "", &mut found).max(at + 1);
                    let segments = |path: String| path.split("::").map(str::to_owned).collect();
                    let named = |path| NamedPath { module: here.clone(), segments: segments(path) };
                    file.paths.extend(found.into_iter().map(named));
                }
            }
        }
        file
    }
}

/// All names that the tree of a `use` declaration binds; where the tree ends.
fn bindings_from(tokens: &[&str], mut at: usize, prefix: &[String], found: &mut Vec<(String, Vec<String>)>) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match tokens.get(at..).unwrap_or_default() {
            ["{", ..] => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    at = bindings_from(tokens, at, &path, found).max(at + 1);
                }
                return at + 1;
            }
            [":", ":", ..] => at += 2,
            ["as", name, ..] => {
                found.push(((*name).to_owned(), path));
                return at + 2;
            }
            // `{self}` binds the parent's name.
            ["self", ..] if !path.is_empty() => at += 1,
            [word, ..] if word.starts_with(is_word) => {
                path.push((*word).to_owned());
                at += 1;
            }
            _ => break,
        }
    }
    if let Some(name) = path.last().cloned() {
        found.push((name, path));
    }
    at
}

/// The code that is compiled without tests.
fn without_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if matches!(
            tokens[at..],
            ["#", "[", "cfg", "(", "test", ")", "]", ..] | ["#", "[", "cfg", "(", "all", "(", "test", ..]
        ) {
            at = item_end(tokens, at);
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// Where the item at `at` ends, which begins with its attributes.
fn item_end(tokens: &[&str], mut at: usize) -> usize {
    while tokens.get(at) == Some(&"#") {
        at = group_end(tokens, at + 1);
    }
    let is_use = tokens[at..].iter().take_while(|token| **token != ";").any(|token| *token == "use");
    while at < tokens.len() {
        match tokens[at] {
            ";" => return at + 1,
            "{" if !is_use => return group_end(tokens, at),
            "{" | "(" | "[" => at = group_end(tokens, at),
            _ => at += 1,
        }
    }
    at
}

/// Where the brackets that open at `at` close.
fn group_end(tokens: &[&str], mut at: usize) -> usize {
    let mut depth = 0;
    while at < tokens.len() {
        match tokens[at] {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

/// The files of one crate by their modules: those that are compiled without tests.
struct Crate {
    files: BTreeMap<Vec<String>, File>,
}

impl Crate {
    /// From the names of its files below `src`, and their texts.
    fn read(sources: &[(&str, &str)]) -> Crate {
        let by_module: BTreeMap<Vec<String>, &str> =
            sources.iter().map(|(name, source)| (module_of(name), *source)).collect();
        let mut files = BTreeMap::new();
        let mut declared = vec![Vec::new()];
        while let Some(module) = declared.pop() {
            let Some(source) = by_module.get(&module) else { continue };
            let file = File::read(&module, source);
            declared.extend(file.children.iter().map(|child| [&module[..], slice::from_ref(child)].concat()));
            files.insert(module, file);
        }
        Crate { files }
    }

    /// Which file each file imports from.
    fn imports(&self) -> BTreeMap<&[String], BTreeSet<&[String]>> {
        let mut imports = BTreeMap::new();
        for (module, file) in &self.files {
            let targets = file.paths.iter().filter_map(|path| self.target(&path.module, &path.segments, 0));
            imports.insert(&module[..], targets.filter(|target| target != module).collect());
        }
        imports
    }

    /// The file that defines what a path in a module names; none if it is of another crate.
    fn target(&self, module: &[String], path: &[String], hops: usize) -> Option<&[String]> {
        let mut at = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            first => {
                let child = [module, &[first.to_owned()]].concat();
                let file = self.file_of(module);
                match self.files[file].bindings.get(&(module.to_vec(), first.to_owned())) {
                    _ if self.files.contains_key(&child) => child,
                    Some(behind) if behind[0] != first && path.len() > 1 => {
                        let whole = [behind, &path[1..]].concat();
                        return (hops < 8).then(|| self.target(module, &whole, hops + 1))?;
                    }
                    _ => return None,
                }
            }
        };
        for (index, segment) in path.iter().enumerate().skip(1) {
            if segment == "super" {
                at.pop();
                continue;
            }
            let file = self.file_of(&at);
            let below = [&at[..], slice::from_ref(segment)].concat();
            if let Some(behind) = self.files[file].bindings.get(&(at.clone(), segment.clone()))
                && !self.files.contains_key(&below)
                && hops < 8
                && let Some(target) = self.target(&at, &[behind, &path[index + 1..]].concat(), hops + 1)
            {
                return Some(target);
            }
            at = below;
        }
        Some(self.file_of(&at))
    }

    /// The file that a module or an item is in.
    fn file_of(&self, module: &[String]) -> &[String] {
        let prefixes = (0..=module.len()).rev().map(|length| &module[..length]);
        let mut files = prefixes.filter_map(|prefix| self.files.get_key_value(prefix));
        files.next().expect("a crate has a root").0
    }

    /// Circles of files, the largest first: each file of one imports, through others, every other file of it.
    fn circles(&self) -> Vec<Vec<String>> {
        let imports = self.imports();
        let reaches: BTreeMap<_, _> = imports.keys().map(|file| (*file, reachable(&imports, file))).collect();
        let mut circles = BTreeSet::new();
        for (file, reached) in &reaches {
            let circle: BTreeSet<_> = reached.iter().filter(|other| reaches[**other].contains(file)).collect();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        let named = |circle: BTreeSet<&&[String]>| circle.into_iter().map(|file| name_of(file)).collect();
        let mut circles: Vec<Vec<String>> = circles.into_iter().map(named).collect();
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

/// What a file imports, directly or through others.
fn reachable<'a>(imports: &BTreeMap<&'a [String], BTreeSet<&'a [String]>>, from: &[String]) -> BTreeSet<&'a [String]> {
    let mut reached = BTreeSet::new();
    let mut waiting: Vec<_> = imports[from].iter().copied().collect();
    while let Some(file) = waiting.pop() {
        if reached.insert(file) {
            waiting.extend(&imports[file]);
        }
    }
    reached
}

fn module_of(file: &str) -> Vec<String> {
    let mut module: Vec<_> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("lib" | "main" | "mod")) {
        module.pop();
    }
    module
}

fn name_of(module: &[String]) -> String {
    if module.is_empty() { "the root".to_owned() } else { module.join("/") }
}

/// What the circles of a crate say against the table.
fn circle_violations(name: &str, sources: &[(&str, &str)], largest: &[(&str, usize)]) -> Vec<String> {
    let circles = Crate::read(sources).circles();
    let found = circles.first().map_or(0, Vec::len);
    let allowed = largest.iter().find(|(known, _)| *known == name).map_or(0, |(_, most)| *most);
    match found.cmp(&allowed) {
        std::cmp::Ordering::Greater => {
            let members = circles[0].join(", ");
            vec![format!("{name}: {found} files import each other in a circle, at most {allowed}: {members}")]
        }
        std::cmp::Ordering::Less => {
            vec![format!("{name}: the largest circle has {found} files; lower its number from {allowed}")]
        }
        std::cmp::Ordering::Equal => Vec::new(),
    }
}

#[test]
fn circles_of_imports_only_shrink() {
    let files = rust_files();
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for (file, source) in &files {
        if let Some((name, path)) = crate_and_path(file)
            && let Some(below) = path.strip_prefix("src/")
        {
            crates.entry(name).or_default().push((below, source));
        }
    }
    assert!(crates.len() > 10, "the walk has missed the crates: {:?}", crates.keys());
    let check = |(name, sources): (&&str, &Vec<_>)| circle_violations(name, sources, LARGEST_CIRCLES);
    let mut violations: Vec<_> = crates.iter().flat_map(check).collect();
    for (name, _) in LARGEST_CIRCLES {
        if !crates.contains_key(name) {
            violations.push(format!("{name}: in the table of circles, but does not exist"));
        }
    }
    assert_none(&violations);
}

#[test]
fn planted_circles_are_found() {
    let circle = |sources: &[(&str, &str)]| Crate::read(sources).circles().first().cloned().unwrap_or_default();
    let root = ("lib.rs", "mod a; mod b; pub use a::A;");
    // One way is no circle; the other way closes it, however it is written.
    assert!(circle(&[root, ("a.rs", "use crate::b::B; struct A;"), ("b.rs", "struct B;")]).is_empty());
    for back in ["use crate::a::A;", "use super::a::A;", "use crate::{a::{self, A}};", "fn f() { crate::a::f() }"] {
        assert_eq!(circle(&[root, ("a.rs", "use crate::b::B;"), ("b.rs", back)]), ["a", "b"], "{back}");
    }
    // Through a re-export, a name of a module, or the scope of a parent.
    let uses_b = ("a.rs", "use crate::b::B; struct A;");
    assert_eq!(circle(&[root, uses_b, ("b.rs", "use crate::A;")]), ["a", "b"]);
    assert_eq!(circle(&[root, uses_b, ("b.rs", "use crate::a; fn f() { a::f() }")]), ["a", "b"]);
    assert_eq!(circle(&[root, uses_b, ("b.rs", "mod inside { use super::super::A; }")]), ["a", "b"]);
    // A parent that declares a module does not import it; one that uses it does, also to re-export from it.
    let child = ("a/c.rs", "use super::A;");
    assert!(circle(&[root, ("a.rs", "mod c; struct A;"), child]).is_empty());
    assert_eq!(circle(&[root, ("a.rs", "mod c; struct A; fn f() { c::f() }"), child]), ["a", "a/c"]);
    assert_eq!(circle(&[root, ("a/mod.rs", "mod c; pub use c::C; struct A;"), child]), ["a", "a/c"]);
    // Comments, tests, other crates and who sees an item are no imports.
    let nothing =
        "// crate::a::A\npub(in crate::a) fn f() { std::a::A; other::A }\n#[cfg(test)]\nmod tests { use crate::A; }";
    assert!(circle(&[root, uses_b, ("b.rs", nothing)]).is_empty());
    let test_file = "#[cfg(all(test, loom))]\n#[path = \"x.rs\"]\nmod c;";
    assert!(circle(&[root, uses_b, ("b.rs", test_file), ("b/c.rs", "use crate::a::A; use super::B;")]).is_empty());
}

#[test]
fn numbers_of_circles_must_fit() {
    let sources: &[(&str, &str)] =
        &[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "use crate::a::A;")];
    let check = |largest: &[(&str, usize)]| circle_violations("x", sources, largest);
    assert!(check(&[("x", 2)]).is_empty());
    assert!(check(&[])[0].contains("a, b"));
    assert!(check(&[("x", 1)])[0].contains("at most 1"));
    assert!(check(&[("x", 3)])[0].contains("lower"));
}
