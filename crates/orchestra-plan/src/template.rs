//! `{name}` in texts of tasks: finds the placeholders, and fills none.
//!
//! `{{name}}` stands for `{name}`. Braces around anything else are text, and so are those of `${NAME}`, which is the shell's: `awk '{print $1}'`,
//! `{"json": 1}` and `{a,b}` stay as they are.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TemplatePart<'a> {
    Text(&'a str),
    /// What stands between the braces; may have placeholders of its own between brackets.
    Name(&'a str),
}

pub(crate) fn parts(text: &str) -> Vec<TemplatePart<'_>> {
    let mut parts = Vec::new();
    let mut begin = 0;
    let mut at = 0;
    while let Some(open) = text[at..].find('{').map(|found| at + found) {
        let is_shell = text[..open].ends_with('$');
        let rest = &text[open + 1..];
        if !is_shell
            && let Some(inner) = rest.strip_prefix('{').and_then(name)
            && rest[1 + inner.len()..].starts_with("}}")
        {
            // The outer pair goes.
            parts.extend([
                TemplatePart::Text(&text[begin..open]),
                TemplatePart::Text(&rest[..inner.len() + 2]),
            ]);
            at = open + inner.len() + 4;
            begin = at;
            continue;
        }
        match name(rest).filter(|inner| !is_shell && rest[inner.len()..].starts_with('}')) {
            Some(inner) => {
                parts.extend([TemplatePart::Text(&text[begin..open]), TemplatePart::Name(inner)]);
                at = open + inner.len() + 2;
                begin = at;
            }
            None => at = open + 1,
        }
    }
    parts.push(TemplatePart::Text(&text[begin..]));
    parts.retain(|part| *part != TemplatePart::Text(""));
    parts
}

/// The name at the head of a text: `lr`, `tasks.prepare.output` or `tasks.train[lr={lr}].output`.
fn name(text: &str) -> Option<&str> {
    let mut depth = 0usize;
    if !text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        return None;
    }
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1)?,
            '\n' => return None,
            _ if depth > 0 => {}
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' | '.' => {}
            // Metrics may be called so: `tasks.train.val/loss`.
            '/' if text.starts_with("tasks.") || text.starts_with("best.") => {}
            _ => return Some(&text[..at]),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_in_braces_are_placeholders() {
        use TemplatePart::{Name, Text};
        assert_eq!(parts("--lr {lr} -o {output}"), [Text("--lr "), Name("lr"), Text(" -o "), Name("output")]);
        assert_eq!(parts("{tasks.a[x={x}].output}/m"), [Name("tasks.a[x={x}].output"), Text("/m")]);
        assert_eq!(parts("{best.a.val/loss}{a/b}"), [Name("best.a.val/loss"), Text("{a/b}")]);
        assert_eq!(parts("a{{lr}}b"), [Text("a"), Text("{lr}"), Text("b")]);
        for text in
            ["awk '{print $1}' {\"a\": 1} {a,b} ${HOME} {} { x } {1}", "{", "{a", "{a[}", "{{", "{{a}"]
        {
            let joined: String = parts(text)
                .iter()
                .map(|part| match part {
                    Text(text) => (*text).to_owned(),
                    Name(name) => format!("<{name}>"),
                })
                .collect();
            assert!(joined == text || text == "{{a}" && joined == "{<a>", "{text}: {joined}");
        }
    }
}
