//! Text files that are no lines of UTF-8: what they are instead, and the command that converts them. It converts nothing.

/// What stands behind the text of a record that is no UTF-8.
pub const NO_UTF8: &str =
    "is no UTF-8; `iconv -f cp1252 -t utf8` converts its file, if that is Windows-1252 or Latin-1";

/// How a file that gzip has made begins.
const GZIP: &[u8] = b"\x1f\x8b";

/// Bytes that are looked at for the width of characters.
const SAMPLE: usize = 4096;

/// What a file of these first bytes is, where lines of UTF-8 are wanted and it cannot be read as such, and the command that makes them. `name`: of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignEncoding {
    /// Completes "the file is ..".
    pub what: &'static str,
    pub command: String,
}

impl ForeignEncoding {
    /// `None`: its bytes are UTF-8 and its lines end as those of other systems.
    pub fn of(head: &[u8], name: &str) -> Option<Self> {
        let iconv =
            |from: &str| format!("iconv -f {from} -t utf8 {} > {}", quoted(name), quoted(&converted(name)));
        if let Some(from) = wide(head) {
            let what = if from.starts_with("utf-16") { "UTF-16" } else { "UTF-32" };
            return Some(Self { what, command: iconv(from) });
        }
        // A header and a record; later ones fail by themselves. The end of the bytes may lie within a character.
        let lines: usize = head.split_inclusive(|byte| *byte == b'\n').take(2).map(<[u8]>::len).sum();
        if std::str::from_utf8(&head[..lines]).is_err_and(|error| error.error_len().is_some()) {
            if head.starts_with(GZIP) {
                let command = format!("gunzip --keep {}", quoted(name));
                return Some(Self { what: "compressed by gzip", command });
            }
            // Where both name a character it is the same one; what Windows-1252 alone has would be control characters of Latin-1.
            return Some(Self {
                what: "no UTF-8, but perhaps Windows-1252 or Latin-1",
                command: iconv("cp1252"),
            });
        }
        let is_old_mac = head.contains(&b'\r') && !head.contains(&b'\n');
        let command = || format!("tr '\\r' '\\n' < {} > {}", quoted(name), quoted(&converted(name)));
        is_old_mac
            .then(|| Self { what: "text whose lines end as on old Macs, with CR alone", command: command() })
    }

    /// As the help of a message.
    pub fn help(&self) -> String {
        format!("`{}` makes a file that can be read: name that one", self.command)
    }
}

/// The name that iconv has for characters of two or four bytes, by their mark or by the zeros of those that are ASCII.
fn wide(head: &[u8]) -> Option<&'static str> {
    let zeros = |first: usize, step: usize| {
        let bytes = head[..head.len().min(SAMPLE)].iter().skip(first).step_by(step);
        let (n, all) = bytes.fold((0, 0), |(n, all), byte| (n + usize::from(*byte == 0), all + 1));
        all > 0 && n * 2 > all
    };
    match head {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some("utf-32"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("utf-16"),
        _ if zeros(1, 2) && zeros(2, 4) => Some("utf-32le"),
        _ if zeros(0, 2) && zeros(1, 4) => Some("utf-32be"),
        _ if zeros(1, 2) => Some("utf-16le"),
        _ if zeros(0, 2) => Some("utf-16be"),
        _ => None,
    }
}

/// `a/b.csv` as `a/b.utf8.csv`.
fn converted(name: &str) -> String {
    match name.rsplit_once('.') {
        Some((stem, ending)) if !ending.contains('/') && !stem.is_empty() => format!("{stem}.utf8.{ending}"),
        _ => format!("{name}.utf8"),
    }
}

/// As one word of a shell.
fn quoted(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    match !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain) {
        true => name.to_owned(),
        false => format!("'{}'", name.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_told_by_its_bytes_and_the_command_converts_it() {
        let wide =
            |text: &str, order: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(order).collect::<Vec<u8>>();
        let text = "id,name\n1,caf\u{e9}\n";
        let marked = |mut mark: Vec<u8>, text: Vec<u8>| {
            mark.extend(text);
            mark
        };
        for (head, command) in [
            (b"id,name\n1,5 \x80\n".to_vec(), Some("iconv -f cp1252 -t utf8 a/d.csv > a/d.utf8.csv")),
            (b"\x1f\x8b\x08\x00\x00".to_vec(), Some("gunzip --keep a/d.csv")),
            (
                marked(vec![0xff, 0xfe], wide(text, u16::to_le_bytes)),
                Some("iconv -f utf-16 -t utf8 a/d.csv > a/d.utf8.csv"),
            ),
            (
                marked(vec![0xfe, 0xff], wide(text, u16::to_be_bytes)),
                Some("iconv -f utf-16 -t utf8 a/d.csv > a/d.utf8.csv"),
            ),
            (wide(text, u16::to_le_bytes), Some("iconv -f utf-16le -t utf8 a/d.csv > a/d.utf8.csv")),
            (wide(text, u16::to_be_bytes), Some("iconv -f utf-16be -t utf8 a/d.csv > a/d.utf8.csv")),
            (
                text.chars().flat_map(|c| u32::from(c).to_le_bytes()).collect(),
                Some("iconv -f utf-32le -t utf8 a/d.csv > a/d.utf8.csv"),
            ),
            (b"id,x\r1,2\r".to_vec(), Some("tr '\\r' '\\n' < a/d.csv > a/d.utf8.csv")),
            (text.as_bytes().to_vec(), None),
            (b"\xef\xbb\xbfid,x\r\n1,2\r\n".to_vec(), None),
            ("caf\u{e9}".as_bytes()[..4].to_vec(), None),
            (b"id,x\n1,2\n3,\xe9\n".to_vec(), None),
            (Vec::new(), None),
        ] {
            assert_eq!(
                ForeignEncoding::of(&head, "a/d.csv").map(|foreign| foreign.command).as_deref(),
                command,
                "{head:?}"
            );
        }
    }

    #[test]
    fn names_are_words_of_a_shell() {
        assert_eq!(
            (converted("d"), converted("a.b/d"), converted(".d")),
            ("d.utf8".into(), "a.b/d.utf8".into(), ".d.utf8".into())
        );
        assert_eq!(
            (quoted("my file"), quoted("it's"), quoted("-d")),
            ("'my file'".into(), r"'it'\''s'".into(), "'-d'".into())
        );
    }
}
