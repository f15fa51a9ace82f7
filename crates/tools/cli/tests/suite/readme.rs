//! Every command in README.md runs and prints what README.md shows. So does every `longhaul plan` in docs/COMMANDS.md.
//!
//! A `sh` block is one command. The `text` block right behind it is its standard output, compared exactly. If the line above the
//! `text` block is `<!-- numbers vary -->`, every number (a digit, and the letters, digits and dots right behind it) matches any
//! number, and any white space matches one blank, because columns move with their numbers. Everything else is compared.
//!
//! The test changes two things: servers listen on a free TCP port, which it passes to their clients, and `longhaul plan` finds a
//! coding speed that was measured before. `.ci/run` runs the `cargo build` line, in the step `release build`.

use std::path::Path;
use std::process::Command;

use crate::kept_speed::{days_ago, kept};
use crate::perf_server::{Server, finish};

const VARY: &str = "<!-- numbers vary -->";
const BUILD: &str = "cargo build --release --locked -p longhaul-cli";

struct Example {
    command: String,
    /// What is shown below it.
    output: Option<String>,
    do_numbers_vary: bool,
}

fn document(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn examples(text: &str) -> Vec<Example> {
    let mut examples = Vec::new();
    for part in text.split("```sh\n").skip(1) {
        let (command, rest) = part.split_once("\n```\n").expect("a block ends");
        let rest = rest.trim_start();
        let (do_numbers_vary, rest) = rest.strip_prefix(VARY).map_or((false, rest), |rest| (true, rest.trim_start()));
        let output = rest.strip_prefix("```text\n").map(|rest| rest.split_once("```\n").expect("a block ends").0);
        let command = command.replace("\\\n", " ");
        examples.push(Example { command, output: output.map(str::to_owned), do_numbers_vary });
    }
    examples
}

/// Numbers become `#`, white space one blank; lines stay lines.
fn without_numbers(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let (mut plain, mut is_in_number, mut is_in_word) = (String::new(), false, false);
        for character in line.chars() {
            let is_part = character.is_ascii_alphanumeric() || character == '.';
            let was_in_number = is_in_number;
            is_in_number = is_part && (is_in_number || (!is_in_word && character.is_ascii_digit()));
            is_in_word = is_part;
            if !is_in_number {
                plain.push(character);
            } else if !was_in_number {
                plain.push('#');
            }
        }
        lines.push(plain.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    lines
}

/// How an output differs from what is shown, if it does.
fn difference(example: &Example, printed: &str) -> Option<String> {
    let shown = example.output.as_ref()?;
    let is_same = if example.do_numbers_vary {
        without_numbers(shown) == without_numbers(printed)
    } else {
        shown.trim_end() == printed.trim_end()
    };
    (!is_same).then(|| format!("{}\nshown:\n{shown}\nprinted:\n{printed}", example.command))
}

/// Runs the commands that a document shows, in its order. Returns how many outputs were compared.
fn check(text: &str, is_wanted: impl Fn(&str) -> bool) -> usize {
    let cache = kept("readme", days_ago(2));
    let mut server: Option<Server> = None;
    let mut compared = 0;
    for example in examples(text).iter().filter(|example| is_wanted(&example.command)) {
        let words: Vec<&str> = example.command.split_whitespace().collect();
        let output = match words[..] {
            ["longhaul", "perf", "server", ref options @ ..] => {
                server = Some(Server::start(options));
                continue;
            }
            ["longhaul", "perf", "client", "127.0.0.1", ref options @ ..] => {
                server.as_ref().expect("a server is shown before its client").client(options)
            }
            ["longhaul", ref arguments @ ..] => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
                command.args(arguments).env("XDG_CACHE_HOME", &cache).current_dir(&cache);
                finish(command)
            }
            _ => panic!("only `longhaul` and `{BUILD}` are run, not `{}`", example.command),
        };
        assert!(output.status.success(), "{}: {output:?}", example.command);
        assert!(example.output.is_some(), "no output is shown for {}", example.command);
        let difference = difference(example, &String::from_utf8(output.stdout).expect("text"));
        assert_eq!(difference, None, "{}", difference.as_deref().unwrap_or_default());
        compared += 1;
    }
    std::fs::remove_dir_all(cache).expect("ours");
    compared
}

#[test]
fn readme_shows_what_commands_print() {
    assert_eq!(check(&document("README.md"), |command| command != BUILD), 3);
}

#[test]
fn the_page_on_commands_shows_what_plans_print() {
    assert_eq!(check(&document("docs/COMMANDS.md"), |command| command.starts_with("longhaul plan ")), 1);
}

/// `.ci/run` takes the build command from README.md.
#[test]
fn ci_runs_the_build_command() {
    let taken = "grep -m 1 -x 'cargo build --release .*' README.md";
    assert!(document(".ci/run").contains(taken), "the step `release build` no longer has: {taken}");
    let readme = document("README.md");
    assert_eq!(readme.lines().find(|line| line.starts_with("cargo build --release ")), Some(BUILD));
}

#[test]
fn planted_differences_are_found() {
    let example = |output: &str, do_numbers_vary| Example {
        command: "longhaul perf client 127.0.0.1".to_owned(),
        output: Some(output.to_owned()),
        do_numbers_vary,
    };
    let shown = " Mtu : 4096[B]  QPN 0xc23887\n 65536   5000  826.36\n";
    let printed = " Mtu : 1024[B]  QPN 0xffff01\n 65536 5000    1.5\n";
    assert_eq!(difference(&example(shown, true), printed), None);
    assert_eq!(difference(&example(shown, false), shown), None);
    assert!(difference(&example(shown, false), printed).is_some());
    let planted = [
        printed.replace("Mtu", "MTU"),
        printed.replace("[B]", ""),
        printed.replace(" 1.5", ""),
        printed.replace("5000 ", "5000 x "),
        printed.replace("0xffff01", "none"),
        printed.replace('\n', " "),
        format!("{printed}more\n"),
    ];
    for other in planted {
        assert!(difference(&example(shown, true), &other).is_some(), "{other}");
    }
}

#[test]
fn examples_are_found_in_a_page() {
    let page = "```sh\nlonghaul a \\\n  b\n```\n\n<!-- numbers vary -->\n```text\n1\n```\n\n```sh\nlonghaul c\n```\n\n\
                words\n\n```text\nx\n```\n";
    let found = examples(page);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].command.split_whitespace().collect::<Vec<_>>(), ["longhaul", "a", "b"]);
    assert_eq!((found[0].output.as_deref(), found[0].do_numbers_vary), (Some("1\n"), true));
    assert_eq!((found[1].output.as_deref(), found[1].do_numbers_vary), (None, false));
}
