//! Phrases that comments and string literals of our crates do not use, because plainer ones exist: an error says
//! "expected X, got Y", a packet is "in flight", a default is "by default".
//!
//! Each crate has a number of such phrases that it may still hold. The numbers may only fall: lower them when you
//! rewrite a text. Text is compared as a reader sees it, so a phrase is found across the lines of a comment or of a
//! string.

use std::collections::BTreeMap;

use longhaul_rules::{Layer, crate_and_path, is_word, next_piece, rust_files};

/// Phrases, and what to write instead. They match whole words, in any case.
const BANNED: &[(&str, &str)] = &[
    ("came none", "got none"),
    ("what came of", "the result of"),
    ("mend", "fix, repair, recover"),
    ("mends", "fixes, repairs, recovers"),
    ("mended", "fixed, repaired, recovered"),
    ("mending", "fixing, repairing, recovering"),
    ("unless told", "by default"),
    ("if told", "if set"),
    ("until told", "until"),
    ("under way", "in flight, in progress"),
    ("on its way", "in flight"),
    ("on their way", "in flight"),
    ("it is over", "it has completed, it has ended"),
    ("by turns", "interleaved, alternating"),
    ("beside", "next to, compared with"),
    ("what there is", "name the thing"),
    ("so many", "this many"),
    ("whoever", "name the caller"),
    ("on the way", "in transit, in the network, towards"),
    ("the way to", "the path to"),
    ("tells", "reports, says, explains"),
];

/// What each crate may still hold. A crate that is not listed holds none.
const ALLOWED: &[(&str, usize)] = &[];

/// The table above spells the phrases out.
const THIS_FILE: &str = "crates/testing/rules/tests/words.rs";

/// The texts of a source file as a reader sees them: neighboring comment lines are one text, and so is a string with
/// its continued lines. Each with the number of its first line.
fn texts(source: &str) -> Vec<(usize, String)> {
    let characters: Vec<char> = source.chars().collect();
    let mut texts: Vec<(usize, String)> = Vec::new();
    let (mut at, mut line) = (0, 1);
    let mut before = None;
    let mut is_comment_open = false;
    while at < characters.len() {
        let (length, layer) = next_piece(&characters[at..], before);
        let piece: String = characters[at..at + length].iter().collect();
        match layer {
            Layer::Code => {
                is_comment_open &= piece.trim().is_empty();
                before = piece.chars().next_back();
            }
            Layer::Comment => {
                let text = piece.trim_start_matches(['/', '!', '*']).trim();
                match texts.last_mut().filter(|_| is_comment_open) {
                    Some((_, comment)) => *comment = format!("{comment} {text}"),
                    None => texts.push((line, text.to_owned())),
                }
                // An empty comment line ends a paragraph.
                is_comment_open = !text.is_empty();
            }
            Layer::Literal => {
                is_comment_open = false;
                texts.push((
                    line,
                    piece.split('\n').map(|part| part.trim_end_matches('\\').trim()).collect::<Vec<_>>().join(" "),
                ));
            }
        }
        line += piece.matches('\n').count();
        at += length;
    }
    texts
}

/// How often a phrase stands in a text in lower case, as whole words.
fn count(text: &str, phrase: &str) -> usize {
    let is_whole = |at: usize| {
        !text[..at].ends_with(|c: char| is_word(c) || c == '-') && !text[at + phrase.len()..].starts_with(is_word)
    };
    text.match_indices(phrase).filter(|(at, _)| is_whole(*at)).count()
}

/// How often a text in lower case says "expected X, came Y".
fn expected_came(text: &str) -> usize {
    let Some((_, rest)) = text.split_once("expected") else { return 0 };
    let marks = [", came", "; came", ": came"];
    marks
        .iter()
        .flat_map(|mark| rest.match_indices(mark))
        .filter(|(at, mark)| !rest[at + mark.len()..].starts_with(is_word))
        .count()
}

/// The banned phrases of a file, each with its line.
fn found(file: &str, source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (line, text) in texts(source) {
        let text = text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
        for (phrase, instead) in BANNED {
            let once = || format!("{file}:{line}: \"{phrase}\"; write: {instead}");
            found.extend((0..count(&text, phrase)).map(|_| once()));
        }
        let once = || format!("{file}:{line}: \"expected …, came …\"; write: expected …, got …");
        found.extend((0..expected_came(&text)).map(|_| once()));
    }
    found
}

/// The phrases of crates that hold more than they may, and crates whose number is to be lowered.
fn excess(by_crate: &BTreeMap<String, Vec<String>>, allowed: &[(&str, usize)]) -> Vec<String> {
    let mut excess = Vec::new();
    for (name, phrases) in by_crate {
        let most = allowed.iter().find(|(known, _)| known == name).map_or(0, |(_, most)| *most);
        if phrases.len() > most {
            excess.push(format!("crate \"{name}\" has {} banned phrases, {most} are allowed:", phrases.len()));
            excess.extend(phrases.iter().cloned());
        } else if phrases.len() < most {
            excess
                .push(format!("crate \"{name}\" has only {} banned phrases: lower its number, {most}", phrases.len()));
        }
    }
    excess
}

#[test]
fn crates_hold_no_more_banned_phrases_than_the_table_allows() {
    let mut by_crate: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, source) in rust_files() {
        if file != THIS_FILE {
            let name = crate_and_path(&file).map_or("", |(name, _)| name);
            by_crate.entry(name.to_owned()).or_default().extend(found(&file, &source));
        }
    }
    for (name, _) in ALLOWED {
        assert!(by_crate.contains_key(*name), "{name}: in the table, but there is no such crate");
    }
    let excess = excess(&by_crate, ALLOWED);
    assert!(excess.is_empty(), "\n{}\n", excess.join("\n"));
}

#[test]
fn planted_phrases_are_found() {
    let number = |source: &str| found("x.rs", source).len();
    for (phrase, _) in BANNED {
        assert!(number(&format!("/// A text, {phrase}, in a comment.\nfn f() {{}}")) >= 1, "{phrase}");
        assert!(number(&format!("const TEXT: &str = \"a text {phrase}\";")) >= 1, "{phrase}");
    }
    assert_eq!(number("#[error(\"expected a number, came {0}\")]"), 1);
    assert_eq!(number("format!(\"{what}: expected 1; came 2\")"), 1);
    // Across lines, and at the beginning of a sentence.
    assert_eq!(number("//! What is under\n//! way.\n"), 1);
    assert_eq!(number("    /// It stops at 3 unless\n    /// told.\n"), 1);
    assert_eq!(number("let text = \"messages that are under \\\n    way\";"), 1);
    assert_eq!(number("// Whoever asks. By turns.\n"), 2);
    // The same words elsewhere.
    assert_eq!(number("fn mended() -> bool { by_turns }\n"), 0, "code is not prose");
    assert_eq!(number("// Amended, recommended, besides, so manyfold.\n"), 0, "parts of other words");
    assert_eq!(number("// It is under.\n\nfn f() {}\n// Way to go.\n"), 0, "two comments are two texts");
    assert_eq!(number("// Nothing came; none was expected.\n"), 0);
}

#[test]
fn a_crate_over_its_number_is_reported() {
    let of = |count: usize| BTreeMap::from([("a".to_owned(), vec!["x.rs:1".to_owned(); count])]);
    assert!(excess(&of(2), &[("a", 2)]).is_empty());
    assert_eq!(excess(&of(3), &[("a", 2)]).len(), 1 + 3);
    assert_eq!(excess(&of(1), &[("a", 2)]).len(), 1, "the number is to be lowered");
    assert_eq!(excess(&of(1), &[]).len(), 1 + 1, "a crate that is not listed holds none");
    assert_eq!(crate_and_path("crates/tools/cli/src/main.rs"), Some(("cli", "src/main.rs")));
    assert_eq!(crate_and_path("fuzz/x.rs"), None);
}
