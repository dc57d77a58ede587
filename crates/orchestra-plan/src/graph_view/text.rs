//! Text as pictures show it: one line, without control characters, not too long. It escapes for no format; `mermaid` does
//! that.

use orchestra_core::steers;

use super::GraphNode;

/// Characters of a line beyond which its middle is left out.
const LONGEST: usize = 40;
/// Characters kept before the gap; paths say more at their end.
const HEAD: usize = 14;
/// Lines of details beyond which the rest is counted.
const MOST_DETAILS: usize = 3;
/// Devices beyond which only the first and the last are named.
const MOST_DEVICES: usize = 3;

/// One line that can be shown.
pub(super) fn line(text: &str) -> String {
    let chars: Vec<char> = text.chars().map(shown).collect();
    if chars.len() <= LONGEST {
        return chars.into_iter().collect();
    }
    let tail = chars.len() - (LONGEST - HEAD - 1);
    chars[..HEAD].iter().chain(&['…']).chain(&chars[tail..]).collect()
}

/// The lines below a node's name.
pub(super) fn details(node: &GraphNode) -> Vec<String> {
    let kept = if node.details.len() > MOST_DETAILS { MOST_DETAILS - 1 } else { node.details.len() };
    let mut lines: Vec<String> = node.details[..kept].iter().map(|d| line(d)).collect();
    if kept < node.details.len() {
        lines.push(format!("and {} more", node.details.len() - kept));
    }
    match &node.devices[..] {
        [] => {}
        [one] if one == "auto" => lines.push("devices auto".to_owned()),
        [one] => lines.push(line(&format!("device {one}"))),
        [first, .., last] if node.devices.len() > MOST_DEVICES => {
            lines.push(format!("{} devices", node.devices.len()));
            lines.push(line(&format!("{first} … {last}")));
        }
        several => lines.push(line(&format!("devices {}", several.join(", ")))),
    }
    lines
}

/// The character itself, or a mark where it would move, hide or turn other text.
fn shown(c: char) -> char {
    match c {
        '\t' | '\n' | '\r' => ' ',
        c if steers(c) || u32::from(c) & 0xfffe == 0xfffe => '\u{fffd}',
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GraphNode, NodeKind};
    use super::*;

    fn node(details: usize, devices: usize) -> GraphNode {
        GraphNode {
            shape: NodeKind::Batch,
            kind: "infer".into(),
            name: "run".into(),
            details: (0..details).map(|i| format!("detail {i}")).collect(),
            devices: (0..devices).map(|i| format!("cuda:{i}")).collect(),
        }
    }

    #[test]
    fn a_long_line_keeps_its_start_and_its_end() {
        let long = "/data/archive/2024/a/very/deep/folder/with/scans/*.png";
        assert_eq!(line(long), "/data/archive/…folder/with/scans/*.png".replace("…folder", "…p/folder"));
        assert_eq!(line(long).chars().count(), LONGEST);
        assert_eq!(line(&"x".repeat(LONGEST)), "x".repeat(LONGEST));
    }

    #[test]
    fn nothing_that_moves_or_hides_text_is_left() {
        assert_eq!(
            line("a\nb\tc\u{1b}[0m\u{202e}\u{ffff}\u{85}"),
            "a b c\u{fffd}[0m\u{fffd}\u{fffd}\u{fffd}"
        );
    }

    #[test]
    fn many_details_and_devices_are_counted() {
        assert_eq!(details(&node(3, 0)), ["detail 0", "detail 1", "detail 2"]);
        assert_eq!(details(&node(5, 1)), ["detail 0", "detail 1", "and 3 more", "device cuda:0"]);
        assert_eq!(details(&node(0, 2)), ["devices cuda:0, cuda:1"]);
        assert_eq!(details(&node(0, 8)), ["8 devices", "cuda:0 … cuda:7"]);
    }
}
