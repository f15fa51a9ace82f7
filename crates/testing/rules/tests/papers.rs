//! docs/PAPERS.md names code, commands and tests that exist, and leaves out no section, figure, table or algorithm of the papers.
//!
//! What stands in backticks there is one of these; anything else is a violation:
//!
//! - a path from the root of the repository, alone or with `#name`, which the file must define (a test, in the column of tests);
//! - a `longhaul` command with its subcommands and options, or `cargo run -p longhaul --example NAME`;
//! - a reliability scheme;
//! - a crate that comes later (`LATER`), which must not exist yet.

use std::fs;

use longhaul_rules::root;

/// What a paper contains, as the first column writes it.
struct Paper {
    heading: &'static str,
    sections: &'static [&'static str],
    figures: u32,
    tables: &'static [&'static str],
    algorithms: u32,
}

const PAPERS: &[Paper] = &[
    Paper {
        heading: "SDR-RDMA",
        sections: &[
            "1", "2.1", "2.2", "2.3", "3.1", "3.1.1", "3.1.2", "3.1.3", "3.2.1", "3.2.2", "3.2.3", "3.2.4", "3.3",
            "3.3.1", "3.3.2", "3.4", "3.4.1", "3.4.2", "4.1", "4.1.1", "4.1.2", "4.2", "4.2.1", "4.2.2", "4.2.3",
            "5.1.1", "5.1.2", "5.2.1", "5.2.2", "5.3", "5.4.1", "5.4.2", "5.4.3", "6", "7", "A", "B", "C",
        ],
        figures: 16,
        tables: &["1"],
        algorithms: 0,
    },
    Paper {
        heading: "LoWAR",
        sections: &[
            "I", "II-A", "II-B", "II-C", "III", "IV-A", "IV-B", "IV-C", "IV-D", "V", "VI-A", "VI-B", "VII", "VIII",
            "IX",
        ],
        figures: 14,
        tables: &["I"],
        algorithms: 1,
    },
    Paper {
        heading: "OptiNIC",
        sections: &[
            "1", "2.1", "2.2", "2.3", "2.4", "3", "3.1.1", "3.1.2", "3.1.3", "3.2", "3.3", "4", "5.1", "5.2", "5.3",
            "6", "7", "8",
        ],
        figures: 7,
        tables: &["1", "2", "3", "4", "5"],
        algorithms: 0,
    },
    Paper {
        heading: "MC-RDMA",
        sections: &[
            "I", "II-A", "II-B", "II-C", "II-D", "III-A", "III-B", "III-C", "III-D", "IV-A", "IV-B", "IV-C", "IV-D",
            "IV-E", "V", "VI", "VII-A", "VII-B", "VII-C", "VII-D", "VII-E", "VII-F", "VIII", "IX",
        ],
        figures: 9,
        tables: &[],
        algorithms: 1,
    },
    Paper {
        heading: "SHIFT",
        sections: &[
            "1", "2.1", "2.2", "2.3", "3.1", "3.2", "4.1", "4.2", "4.3", "4.4", "5", "5.1.1", "5.1.2", "5.2", "6", "7",
            "A", "B", "C.1", "C.2", "C.3", "C.4",
        ],
        figures: 8,
        tables: &["1", "2"],
        algorithms: 0,
    },
];

/// Crates that the page announces.
const LATER: &[&str] = &["switch"];

const HEAD: &str = "| where | what | code | command | test |";

fn page() -> String {
    fs::read_to_string(root().join("docs/PAPERS.md")).expect("docs/PAPERS.md")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// What stands in backticks.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The rows of the five-column tables, by cells, with the heading above them.
fn rows(page: &str) -> Vec<(&str, [&str; 5])> {
    let (mut heading, mut is_inside, mut found) = ("", false, Vec::new());
    for line in page.lines() {
        if let Some(text) = line.strip_prefix("## ") {
            heading = text;
        }
        is_inside = line.starts_with('|') && (is_inside || line == HEAD);
        if !is_inside || line == HEAD || line.starts_with("|---") {
            continue;
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        found.push((heading, <[&str; 5]>::try_from(cells).unwrap_or_else(|_| panic!("not five cells: {line}"))));
    }
    found
}

fn contains_word_after(source: &str, before: &str, name: &str) -> bool {
    let is_end = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
    source.match_indices(&format!("{before}{name}")).any(|(at, text)| is_end(&source[at + text.len()..]))
}

/// Whether a file defines a function, a type, or a field.
fn defines(source: &str, name: &str) -> bool {
    ["fn ", "struct ", "enum ", "trait ", "const "].iter().any(|kind| contains_word_after(source, kind, name))
        || source.contains(&format!("    pub {name}:"))
}

/// Whether a file has a test of this name: attributes stand on the lines above it.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let is_it = |line: &&str| line.starts_with("fn ") && contains_word_after(line, "fn ", name);
    lines.iter().enumerate().any(|(at, line)| {
        let mut above = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        is_it(line) && above.any(|line| *line == "#[test]")
    })
}

/// Every file below a folder of the command's source.
fn sources_of_command(command: &str) -> String {
    let folder = root().join("crates/tools/cli/src");
    let mut text = read(&format!("crates/tools/cli/src/{command}.rs"));
    let mut waiting = vec![folder.join(command)];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                text += &fs::read_to_string(path).expect("text");
            }
        }
    }
    text + &read("crates/tools/cli/src/softnic_options.rs")
}

/// Subcommands are variants of the enums in main.rs and in the file of the first word, options are fields.
fn command_problem(command: &str) -> Option<String> {
    let mut parent = "main".to_owned();
    let first = command.split(' ').nth(1).unwrap_or_default();
    for word in command.split(' ').skip(1) {
        if let Some(option) = word.strip_prefix("--") {
            let field = option.replace('-', "_");
            let sources = sources_of_command(first);
            if ![format!(" {field}:"), format!("long = \"{option}\"")]
                .iter()
                .any(|text| sources.contains(text.as_str()))
            {
                return Some(format!("`{command}`: no option {word}"));
            }
        } else {
            let (initial, rest) = word.split_at(1);
            let variant = format!("    {}{rest}(", initial.to_uppercase());
            if !read(&format!("crates/tools/cli/src/{parent}.rs")).contains(&variant) {
                return Some(format!("`{command}`: no command {word}"));
            }
            word.clone_into(&mut parent);
        }
    }
    None
}

fn name_problem(name: &str, is_test: bool) -> Option<String> {
    if ["sr:", "ec:", "lowar:"].iter().any(|kind| name.starts_with(kind)) {
        return None;
    }
    if LATER.contains(&name) {
        let mut groups = fs::read_dir(root().join("crates")).expect("the folder of crates");
        let exists = groups.any(|group| group.expect("a group of crates").path().join(name).exists());
        return exists.then(|| format!("`{name}` is there now: say where"));
    }
    if name.starts_with("longhaul ") {
        return command_problem(name);
    }
    if let Some(example) = name.strip_prefix("cargo run -p longhaul --example ") {
        let exists = root().join(format!("crates/messages/longhaul/examples/{example}.rs")).exists();
        return (!exists).then(|| format!("`{name}`: no such example"));
    }
    let (path, inside) = name.split_once('#').map_or((name, None), |(path, inside)| (path, Some(inside)));
    if !["crates/", "docs/", "lab/", "fuzz/"].iter().any(|start| path.starts_with(start)) {
        return Some(format!("`{name}` is no path, command, example or scheme"));
    }
    if !root().join(path).exists() {
        return Some(format!("`{name}`: no such file"));
    }
    let source = read(path);
    match inside {
        Some(inside) if is_test && !has_test(&source, inside) => Some(format!("`{name}`: no such test")),
        Some(inside) if !is_test && !defines(&source, inside) => Some(format!("`{name}`: not defined there")),
        None if is_test => Some(format!("`{name}` names no test")),
        _ => None,
    }
}

/// Names that do not exist, and rows that name nothing without saying why.
fn problems(page: &str) -> Vec<String> {
    let mut problems: Vec<String> = names(page).filter_map(|name| name_problem(name, false)).collect();
    for (heading, [place, _, code, command, test]) in rows(page) {
        problems.extend(names(test).filter_map(|name| name_problem(name, true)));
        let has_reason = code.starts_with("background") || code.contains("not implemented");
        if !has_reason && (names(code).next().is_none() || names(test).next().is_none()) {
            problems.push(format!("{heading}, {place}: neither code and test, nor \"not implemented\""));
        }
        if !command.is_empty() && names(command).next().is_none() {
            problems.push(format!("{heading}, {place}: the command is not in backticks"));
        }
    }
    problems
}

/// Places of the papers that no row has, and places that no paper has.
fn gaps(page: &str) -> Vec<String> {
    let rows = rows(page);
    let mut gaps = Vec::new();
    for paper in PAPERS {
        let mut wanted: Vec<String> = paper.sections.iter().map(|section| format!("§{section}")).collect();
        wanted.extend((1..=paper.figures).map(|number| format!("Figure {number}")));
        wanted.extend(paper.tables.iter().map(|number| format!("Table {number}")));
        wanted.extend((1..=paper.algorithms).map(|number| format!("Algorithm {number}")));
        let places = || rows.iter().filter(|(heading, _)| *heading == paper.heading).map(|(_, cells)| cells[0]);
        let missing = wanted.iter().filter(|place| !places().any(|there| there == place.as_str()));
        gaps.extend(missing.map(|place| format!("{}: {place} is missing", paper.heading)));
        let unknown = places().filter(|place| !wanted.iter().any(|there| there == place));
        gaps.extend(unknown.map(|place| format!("{}: there is no {place}", paper.heading)));
    }
    gaps
}

#[test]
fn every_name_exists() {
    assert_eq!(problems(&page()), [""; 0]);
}

#[test]
fn every_part_of_every_paper_has_a_row() {
    assert_eq!(gaps(&page()), [""; 0]);
}

#[test]
fn planted_names_are_found() {
    let page = page();
    assert!(
        page.contains("#every_name_exists`")
            && page.contains("`longhaul perf bitmap`")
            && page.contains("--example own_scheme`")
    );
    let planted = |from: &str, to: &str| {
        let found = problems(&page.replacen(from, to, 1));
        assert!(!found.is_empty(), "{to} was not noticed");
        found
    };
    assert!(
        planted("crates/messages/plan/src/ring.rs`", "crates/messages/plan/src/rings.rs`")[0].contains("no such file")
    );
    assert!(planted("#every_name_exists`", "#every_name_exist`")[0].contains("not defined there"));
    assert!(planted("claims.rs#where_repeating_", "claims.rs#where_")[0].contains("not defined there"));
    assert!(planted("`longhaul perf bitmap`", "`longhaul perf bitmaps`")[0].contains("no command bitmaps"));
    assert!(planted("`longhaul plan --ring`", "`longhaul plan --rings`")[0].contains("no option --rings"));
    assert!(planted("--example own_scheme`", "--example no_scheme`")[0].contains("no such example"));
    assert!(planted("`switch`", "`verbs`")[0].contains("is no path"));
    // A function that exists and is no test.
    let helper = "crates/testing/rules/tests/papers.rs#page`";
    let test = "crates/testing/rules/tests/source_rules.rs#dependencies_run_downwards`";
    assert!(planted(test, helper)[0].contains("no such test"));
    assert!(planted("not implemented: needs GPUs", "later")[0].contains("neither code and test"));
}

#[test]
fn planted_gaps_are_found() {
    let page = page();
    assert_eq!(
        gaps(&page.replacen("| Figure 16 |", "| Figure 17 |", 1)),
        ["SDR-RDMA: Figure 16 is missing", "SDR-RDMA: there is no Figure 17"]
    );
    assert_eq!(gaps(&page.replacen("| §IV-E |", "| §IV-D |", 1)), ["MC-RDMA: §IV-E is missing"]);
}
