//! What is said at the end of a run of pages, frames and boxes that no stage was given. It counts nothing.

use orchestra_launch::{LeftOut, LeftOutCount};

use crate::human::counted;

pub fn warning(report: &LeftOutCount) -> String {
    let LeftOutCount { by, what, items, count } = report;
    let files = counted(*items, "file has", "files have");
    let said = match what {
        LeftOut::Pages => {
            let were = counted(*count, "page was", "pages were");
            format!(
                "source `{by}`: {files} more than one page, and only the first was read: {were} passed over; a stage of kind `pages` takes each"
            )
        }
        LeftOut::Frames => {
            let were = counted(*count, "frame was", "frames were");
            format!(
                "source `{by}`: {files} more than one frame, and only the first was read: {were} passed over"
            )
        }
        LeftOut::BoxesOutside => {
            let boxes = counted(
                *count,
                "box lies outside of the picture and is",
                "boxes lie outside of the picture and are",
            );
            format!(
                "stage `{by}`: {boxes} left out; `units` of a crop, and `boxes` of a detector, say whether they are in pixels or relative (0 to 1)"
            )
        }
        LeftOut::BoxesWithoutArea => {
            let boxes = counted(
                *count,
                "box is turned round or has no area, and is",
                "boxes are turned round or have no area, and are",
            );
            format!(
                "stage `{by}`: {boxes} left out; `corners` of a crop, and `layout` of a detector, say what the numbers of a box are"
            )
        }
    };
    format!("warning: {said}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_said_with_its_count() {
        let of = |what, items, count| warning(&LeftOutCount { by: "s".into(), what, items, count });
        assert_eq!(
            of(LeftOut::Pages, 2, 3),
            "warning: source `s`: 2 files have more than one page, and only the first was read: 3 pages were passed over; a stage of kind `pages` takes each"
        );
        assert_eq!(
            of(LeftOut::Frames, 1, 1),
            "warning: source `s`: 1 file has more than one frame, and only the first was read: 1 frame was passed over"
        );
        assert!(of(LeftOut::BoxesOutside, 1, 1_000).contains("1,000 boxes lie outside"));
        assert!(of(LeftOut::BoxesWithoutArea, 1, 1).contains("1 box is turned round or has no area"));
    }
}
