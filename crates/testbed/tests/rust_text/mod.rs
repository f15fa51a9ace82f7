//! Text of the repository for tests of source rules: its files, and Rust text taken apart into code, comments and literals.

use std::fs;
use std::path::{Path, PathBuf};

/// What a piece of Rust text is.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Layer {
    Code,
    Comment,
    Literal,
}

/// Length and layer of what stands first in `text`, which is not empty; `before` is the character before it.
pub(crate) fn next_piece(text: &[char], before: Option<char>) -> (usize, Layer) {
    let starts = |prefix: &str| text.iter().copied().take(prefix.len()).eq(prefix.chars());
    if starts("//") {
        let length = text.iter().position(|&c| c == '\n').unwrap_or(text.len());
        return (length, Layer::Comment);
    }
    if starts("/*") {
        return (block_comment_length(text), Layer::Comment);
    }
    let inside_word = before.is_some_and(is_word);
    for prefix in ["", "b", "c"] {
        if !inside_word && starts(&format!("{prefix}\"")) || prefix.is_empty() && starts("\"") {
            return (quoted_length(text, prefix.len(), '"'), Layer::Literal);
        }
    }
    for prefix in ["r", "br", "cr"] {
        if !inside_word && starts(prefix) {
            let hashes = text[prefix.len()..].iter().take_while(|&&c| c == '#').count();
            if text.get(prefix.len() + hashes) == Some(&'"') {
                return (raw_string_length(text, prefix.len() + hashes, hashes), Layer::Literal);
            }
        }
    }
    // A character, unless it is a lifetime: 'a' ends where a lifetime goes on.
    if starts("'") && (text.get(1) == Some(&'\\') || text.get(2) == Some(&'\'')) {
        return (quoted_length(text, 0, '\''), Layer::Literal);
    }
    (1, Layer::Code)
}

fn block_comment_length(text: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        match text.get(at..at + 2) {
            Some(['/', '*']) => (depth, at) = (depth + 1, at + 2),
            Some(['*', '/']) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(text.len())
}

fn quoted_length(text: &[char], open: usize, quote: char) -> usize {
    let mut at = open + 1;
    while at < text.len() && text[at] != quote {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

fn raw_string_length(text: &[char], open: usize, hashes: usize) -> usize {
    let mut at = open + 1;
    while at < text.len() {
        let closing = text[at] == '"' && text[at + 1..].iter().take_while(|&&c| c == '#').count() >= hashes;
        if closing {
            return at + 1 + hashes;
        }
        at += 1;
    }
    text.len()
}

pub(crate) fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The root of the repository.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate lies two folders below the root").to_owned()
}

/// All text files under the root with their names relative to it, sorted; build output and git's own are left out.
pub(crate) fn files() -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder of the repository can be read") {
            let entry = entry.expect("an entry of the repository can be read");
            let name = entry.file_name();
            let kind = entry.file_type().expect("an entry has a type");
            if kind.is_dir() && name != "target" && name != ".git" {
                walk(&entry.path(), found);
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    let root = root();
    let mut found = Vec::new();
    walk(&root, &mut found);
    found.sort();
    let texts = found.into_iter().filter_map(|path| {
        let name = path.strip_prefix(&root).expect("it was found below the root");
        let text = fs::read_to_string(&path).ok()?;
        Some((name.to_string_lossy().into_owned(), text))
    });
    texts.collect()
}

/// All Rust files of the repository with their names, as [`files`] gives them.
pub(crate) fn rust_files() -> Vec<(String, String)> {
    let files: Vec<_> = files().into_iter().filter(|(name, _)| name.ends_with(".rs")).collect();
    assert!(files.len() > 20, "the walk has missed the sources: {} found", files.len());
    files
}
