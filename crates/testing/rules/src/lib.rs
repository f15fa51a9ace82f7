//! The files of this repository as its rules see them: which there are, and their text taken apart. The rules themselves are the tests
//! of this crate.

use std::fs;
use std::path::{Path, PathBuf};

// --- Rust text, taken apart -----------------------------------------------------------------------------------------

/// A source file in two layers of the same shape: line `n` of each is line `n` of the file, with everything that does
/// not belong to the layer blanked out. Contents of strings and characters are in neither.
pub struct Layers {
    /// What the compiler reads, literals excepted.
    pub code: Vec<String>,
    /// What only people read.
    pub comments: Vec<String>,
}

impl Layers {
    /// Takes a source file apart.
    pub fn of(source: &str) -> Layers {
        let characters: Vec<char> = source.chars().collect();
        let mut code = String::new();
        let mut comments = String::new();
        let mut at = 0;
        while at < characters.len() {
            let (length, layer) = next_piece(&characters[at..], code.chars().next_back());
            for &character in &characters[at..at + length] {
                let blank = if character == '\n' { '\n' } else { ' ' };
                code.push(if layer == Layer::Code { character } else { blank });
                comments.push(if layer == Layer::Comment { character } else { blank });
            }
            at += length;
        }
        let lines = |text: String| text.lines().map(str::to_owned).collect();
        Layers { code: lines(code), comments: lines(comments) }
    }

    /// The part before the tests, which come last in a file.
    pub fn code_before_tests(&self) -> String {
        let is_test = |line: &String| line.trim() == "#[cfg(test)]";
        let end = self.code.iter().position(is_test).unwrap_or(self.code.len());
        self.code[..end].join("\n")
    }
}

/// What a piece of source text is.
#[derive(PartialEq)]
pub enum Layer {
    /// Code, literals excepted.
    Code,
    /// A comment, with the characters that begin and end it.
    Comment,
    /// A string or a character, with its quotes.
    Literal,
}

/// Length and layer of what stands first in `text`, which is not empty; `before` is the character before it.
pub fn next_piece(text: &[char], before: Option<char>) -> (usize, Layer) {
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

/// Whether a character belongs to a word.
pub fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Words and single other characters, without white space.
pub fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if is_word(first) { rest.find(|c| !is_word(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// All paths with `::` in the code; the trees of `use` are unfolded.
pub fn paths(code: &str) -> Vec<String> {
    let tokens = tokens(code);
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        at = path_from(&tokens, at, "", &mut paths).max(at + 1);
    }
    paths
}

/// Reads the path at `at`, all its branches below `prefix`; where it ends.
pub fn path_from(tokens: &[&str], mut at: usize, prefix: &str, paths: &mut Vec<String>) -> usize {
    let mut path = prefix.to_owned();
    while let Some(token) = tokens.get(at) {
        if *token == "{" && path.ends_with("::") {
            at += 1;
            while at < tokens.len() && tokens[at] != "}" {
                at = path_from(tokens, at, &path, paths).max(at + 1);
            }
            return at + 1;
        }
        if !(token.starts_with(is_word) || *token == "*" && path.ends_with("::")) {
            break;
        }
        path.push_str(token);
        at += 1;
        if tokens.get(at..at + 2) != Some(&[":", ":"]) {
            break;
        }
        path.push_str("::");
        at += 2;
    }
    if path != prefix {
        // `{self, …}` names its parent.
        paths.push(path.trim_end_matches("::self").to_owned());
    }
    at
}

// --- the repository -------------------------------------------------------------------------------------------------

/// The folder of the workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(3).expect("crates/GROUP/NAME lies three folders below the root").to_owned()
}

/// The crate to which a file under `crates/GROUP/NAME/` belongs, and the path of the file in that crate.
pub fn crate_and_path(file: &str) -> Option<(&str, &str)> {
    let (_group, rest) = file.strip_prefix("crates/")?.split_once('/')?;
    rest.split_once('/')
}

/// All text files under the root with their names relative to it, sorted; build output and git's own are left out.
pub fn files() -> Vec<(String, String)> {
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

/// The sources among [`files`].
pub fn rust_files() -> Vec<(String, String)> {
    let files: Vec<_> = files().into_iter().filter(|(name, _)| name.ends_with(".rs")).collect();
    assert!(files.len() > 20, "the walk has missed the sources: {} found", files.len());
    files
}

/// Fails with all violations, one a line.
#[track_caller]
pub fn assert_none(violations: &[String]) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}
