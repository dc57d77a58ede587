//! What is said at the end of a run of pages, frames and boxes that no stage was given. It counts nothing.

use orchestra::{PassedOver, PassedOverReport};

use crate::human::counted;

/// The warning about one count.
pub fn warning(report: &PassedOverReport) -> String {
    let PassedOverReport { by, what, items, count } = report;
    let files = counted(*items, "file has", "files have");
    let said = match what {
        PassedOver::Pages => {
            let were = counted(*count, "page was", "pages were");
            format!(
                "source `{by}`: {files} more than one page, and only the first was read: {were} passed over"
            )
        }
        PassedOver::Frames => {
            let were = counted(*count, "frame was", "frames were");
            format!(
                "source `{by}`: {files} more than one frame, and only the first was read: {were} passed over"
            )
        }
        PassedOver::BoxesOutside => {
            let boxes = counted(*count, "box lies", "boxes lie");
            format!(
                "stage `{by}`: {boxes} outside of the picture and made no part; `units` says whether boxes are in pixels or relative (0 to 1)"
            )
        }
        PassedOver::BoxesWithoutArea => {
            let boxes = counted(*count, "box is turned round or has", "boxes are turned round or have");
            format!(
                "stage `{by}`: {boxes} no area and made no part; `corners` says what the numbers of a box are"
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
        let of = |what, items, count| warning(&PassedOverReport { by: "s".into(), what, items, count });
        assert_eq!(
            of(PassedOver::Pages, 2, 3),
            "warning: source `s`: 2 files have more than one page, and only the first was read: 3 pages were passed over"
        );
        assert_eq!(
            of(PassedOver::Frames, 1, 1),
            "warning: source `s`: 1 file has more than one frame, and only the first was read: 1 frame was passed over"
        );
        assert!(of(PassedOver::BoxesOutside, 1, 1_000).contains("1,000 boxes lie outside"));
        assert!(of(PassedOver::BoxesWithoutArea, 1, 1).contains("1 box is turned round or has no area"));
    }
}
