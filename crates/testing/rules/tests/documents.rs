//! What holds for Markdown pages: links lead to files and headings that exist, prose in README.md and docs/ is wrapped at 120 columns,
//! and README.md stays short.

use std::fs;

use longhaul_rules::root;

const COLUMNS_MAX: usize = 120;
const README_LINES_MAX: usize = 150;

/// Pages by their path from the root.
fn pages() -> Vec<(String, String)> {
    let mut pages = Vec::new();
    for folder in ["", "docs", "docs/figures"] {
        for entry in fs::read_dir(root().join(folder)).expect("a folder") {
            let name = entry.expect("an entry").file_name().into_string().expect("a name");
            if name.ends_with(".md") {
                let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                let text = fs::read_to_string(root().join(&path)).expect("a page");
                pages.push((path, text));
            }
        }
    }
    pages
}

/// The lines that are not in a fenced block.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    })
}

/// As GitHub makes it of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn broken_links(path: &str, text: &str) -> Vec<String> {
    let folder = root().join(path).parent().expect("a folder").to_owned();
    let targets = prose(text).flat_map(|line| line.split("](").skip(1).filter_map(|rest| rest.split(')').next()));
    let mut broken = Vec::new();
    for target in targets.filter(|target| !target.contains("://")) {
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let file = if file.is_empty() { root().join(path) } else { folder.join(file) };
        let is_there = if heading.is_empty() {
            file.exists()
        } else {
            let page = fs::read_to_string(&file).unwrap_or_default();
            prose(&page).any(|line| line.starts_with('#') && anchor(line) == heading)
        };
        if !is_there {
            broken.push(format!("{path}: {target}"));
        }
    }
    broken
}

/// Tables, headings, and lines that are one word cannot be wrapped; indented lines are code or belong to it.
fn long_lines(path: &str, text: &str) -> Vec<String> {
    let is_free = |line: &str| {
        let is_one_word = !line.trim_start_matches(['-', ' ']).contains(' ');
        line.starts_with(['|', '#', '!', '<']) || line.starts_with("    ") || is_one_word
    };
    let long = |line: &&str| line.chars().count() > COLUMNS_MAX && !is_free(line);
    prose(text).filter(long).map(|line| format!("{path}: {line}")).collect()
}

#[test]
fn links_lead_somewhere() {
    let broken: Vec<String> = pages().iter().flat_map(|(path, text)| broken_links(path, text)).collect();
    assert_eq!(broken, [""; 0]);
}

#[test]
fn prose_is_wrapped() {
    let is_checked = |path: &str| path == "README.md" || path.starts_with("docs/");
    let pages = pages();
    let checked = pages.iter().filter(|(path, _)| is_checked(path));
    let long: Vec<String> = checked.flat_map(|(path, text)| long_lines(path, text)).collect();
    assert!(long.is_empty(), "wrap at {COLUMNS_MAX} columns:\n{}", long.join("\n"));
}

#[test]
fn the_readme_is_short() {
    let lines = fs::read_to_string(root().join("README.md")).expect("README.md").lines().count();
    assert!(lines <= README_LINES_MAX, "README.md has {lines} lines; move something to docs/");
}

#[test]
fn planted_mistakes_are_found() {
    let page = "# A page\n\n[a](README.md) [b](docs/GONE.md) [c](#install) [d](#gone) [e](https://a.b/c)\n";
    assert_eq!(broken_links("README.md", page), ["README.md: docs/GONE.md", "README.md: #gone"]);
    assert_eq!(
        broken_links("docs/GUIDE.md", "[a](../README.md#install) [b](../README.md#gone)"),
        ["docs/GUIDE.md: ../README.md#gone"]
    );
    let long = "word ".repeat(30);
    assert_eq!(long_lines("x", &format!("short\n\n```text\n{long}\n```\n| {long} |\n{long}\n")).len(), 1);
}
