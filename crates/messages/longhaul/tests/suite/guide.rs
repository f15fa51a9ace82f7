//! docs/GUIDE.md shows the examples as they are, and README.md lines of them. CI runs its commands (`.ci/run`, step `sockets: guide`).

use std::path::Path;

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Blocks of a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let begin = format!("\n```{language}\n");
    let block = |rest: &str| rest.split_once("\n```\n").map(|(block, _)| block.to_owned()).expect("a block ends");
    text.split(&begin).skip(1).map(block).collect()
}

#[test]
fn programs_are_the_examples() {
    let guide = file("../../../docs/GUIDE.md");
    let programs = blocks(&guide, "rust");
    let examples = ["receive", "send", "async_echo", "own_scheme", "fec"];
    assert_eq!(programs.len(), examples.len());
    for (program, name) in programs.iter().zip(examples) {
        let example = file(&format!("examples/{name}.rs"));
        assert!(example.contains(program), "the block of {name}.rs in docs/GUIDE.md is not in the example:\n{program}");
        assert!(guide.contains(&format!("`crates/messages/longhaul/examples/{name}.rs`")));
    }
}

#[test]
fn commands_run_examples_that_there_are() {
    let commands = blocks(&file("../../../docs/GUIDE.md"), "sh");
    assert!(commands.len() >= 6);
    for command in commands {
        let name = command.strip_prefix("cargo run -p longhaul --example ").expect("a command that CI runs");
        let name = name.split(' ').next().expect("a name");
        assert!(!file(&format!("examples/{name}.rs")).is_empty());
    }
}

/// The lines of each block are lines of an example, in the same order, perhaps with others between them.
#[test]
fn the_readme_shows_lines_of_the_examples() {
    let programs = blocks(&file("../../../README.md"), "rust");
    assert_eq!(programs.len(), 2);
    for (program, name) in programs.iter().zip(["receive", "send"]) {
        let example = file(&format!("examples/{name}.rs"));
        let mut lines = example.lines().map(str::trim);
        for line in program.lines() {
            assert!(lines.any(|there| there == line.trim()), "not in {name}.rs, or not in this order: {line}");
        }
    }
}
