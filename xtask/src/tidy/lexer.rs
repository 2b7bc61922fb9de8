//! Just enough of Rust's lexical grammar: comments, strings and character literals blanked to spaces (lines
//! stay where they are), the spans of test modules, and the spans of functions.
//!
//! It does not parse: macros and generics pass through as text. That is enough to count lines and find words.

use std::ops::Range;

/// The source with every comment and literal blanked, byte for byte, newlines kept.
pub fn blank(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        if end > at {
            out[at..end].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
            at = end;
        } else {
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Where the comment or literal that starts at `at` ends; `at` itself if none starts there.
fn literal_end(b: &[u8], at: usize) -> usize {
    let rest = &b[at..];
    let word_before = at > 0 && (b[at - 1].is_ascii_alphanumeric() || b[at - 1] == b'_');
    match rest {
        [b'/', b'/', ..] => at + rest.iter().position(|c| *c == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment_end(b, at),
        [b'"', ..] => quoted_end(b, at + 1),
        [b'b', b'"', ..] | [b'c', b'"', ..] if !word_before => quoted_end(b, at + 2),
        [b'r', ..] if !word_before => raw_end(b, at, at + 1),
        [b'b', b'r', ..] if !word_before => raw_end(b, at, at + 2),
        [b'\'', ..] => char_end(b, at),
        _ => at,
    }
}

fn block_comment_end(b: &[u8], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i < b.len() {
        match &b[i..] {
            [b'/', b'*', ..] => (depth, i) = (depth + 1, i + 2),
            [b'*', b'/', ..] => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    b.len()
}

fn quoted_end(b: &[u8], mut i: usize) -> usize {
    while i < b.len() {
        match b[i] {
            b'\\' => i += 2,
            b'"' => return i + 1,
            _ => i += 1,
        }
    }
    b.len()
}

fn raw_end(b: &[u8], start: usize, after_r: usize) -> usize {
    let hashes = b[after_r..].iter().take_while(|c| **c == b'#').count();
    let open = after_r + hashes;
    if b.get(open) != Some(&b'"') {
        return start;
    }
    let mut close = vec![b'"'];
    close.resize(hashes + 1, b'#');
    let found = b[open + 1..].windows(close.len()).position(|w| w == close);
    found.map_or(b.len(), |n| open + 1 + n + close.len())
}

/// A character literal, as opposed to a lifetime.
fn char_end(b: &[u8], at: usize) -> usize {
    if b.get(at + 1) == Some(&b'\\') {
        let from = at + 3;
        return b.get(from..).and_then(|r| r.iter().position(|c| *c == b'\'')).map_or(at, |n| from + n + 1);
    }
    let text = std::str::from_utf8(&b[at + 1..(at + 6).min(b.len())])
        .or_else(|e| std::str::from_utf8(&b[at + 1..at + 1 + e.valid_up_to()]));
    let first = text.ok().and_then(|t| t.chars().next()).map_or(1, char::len_utf8);
    if b.get(at + 1 + first) == Some(&b'\'') { at + first + 2 } else { at }
}

/// The end of the block whose opening brace is the first after `from`; none if a `;` comes first.
fn block_end(blanked: &[u8], from: usize) -> Option<usize> {
    let (mut depth, mut nested) = (0usize, 0i32);
    for (i, c) in blanked.iter().enumerate().skip(from) {
        match c {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(i + 1);
                }
            }
            b'(' | b'[' if depth == 0 => nested += 1,
            b')' | b']' if depth == 0 => nested -= 1,
            b';' if depth == 0 && nested == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The byte spans of modules and functions under `#[cfg(test)]`.
pub fn test_spans(blanked: &str) -> Vec<Range<usize>> {
    let mut spans: Vec<Range<usize>> = Vec::new();
    for (at, _) in blanked.match_indices("#[cfg(test)]") {
        if spans.last().is_some_and(|s| s.contains(&at)) {
            continue;
        }
        if let Some(end) = block_end(blanked.as_bytes(), at + "#[cfg(test)]".len()) {
            spans.push(at..end);
        }
    }
    spans
}

/// A function's name and the bytes from its `fn` to its closing brace.
pub struct Function {
    pub name: String,
    pub span: Range<usize>,
}

/// Every function that has a body.
pub fn functions(blanked: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, _) in blanked.match_indices("fn ") {
        let before = blanked[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let name: String =
            blanked[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if name.is_empty() {
            continue;
        }
        if let Some(end) = block_end(blanked.as_bytes(), at) {
            found.push(Function { name, span: at..end });
        }
    }
    found
}

/// The 1-based line of a byte offset.
pub fn line(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let source = "let a = \"Instant::now\"; // unsafe\nlet b = 'x'; let c: &'static str = r#\"fn \"#; /* a /* b */ c */ end";
        let out = blank(source);
        assert_eq!(out.len(), source.len());
        assert!(!out.contains("Instant"));
        assert!(!out.contains("unsafe"));
        assert!(!out.contains("fn "));
        assert!(out.contains("&'static str"));
        assert!(out.ends_with("end"));
    }

    #[test]
    fn escaped_quotes_do_not_end_a_literal() {
        assert_eq!(blank(r#"a("\"unsafe", '\'', '{') b"#).replace(' ', ""), "a(,,)b");
    }

    #[test]
    fn functions_are_found_with_their_ends() {
        let source =
            "trait T { fn no(&self) -> [u8; 4]; }\nfn yes<F: Fn(u8)>(f: F) -> [u8; 2] {\n  if x { y }\n}\n";
        let found = functions(&blank(source));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "yes");
        assert_eq!(line(source, found[0].span.end - 1) - line(source, found[0].span.start) + 1, 3);
    }

    #[test]
    fn test_modules_are_spans() {
        let source = "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() { {} }\n}\nfn c() {}\n";
        let spans = test_spans(source);
        assert_eq!(&source[spans[0].clone()].lines().count(), &4);
        assert!(test_spans("#[cfg(test)]\nmod tests;\nfn x() {}\n").is_empty());
    }
}
