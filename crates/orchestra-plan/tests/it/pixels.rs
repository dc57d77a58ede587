//! Plans of image stages whose pixels are normalised in the model's graph.

use crate::common::{DIGITS, FakeHost};
use orchestra_core::{DType, ImageSpec, Layout, PixelInput};

#[test]
fn pixels_travel_as_bytes_where_the_graph_normalises_and_the_model_still_has_to_fit() {
    let text = DIGITS
        .replace("color = \"gray\"", "color = \"gray\"\nnormalize = \"device\"\nmean = 0.5\nstd = 0.25");
    let plan = FakeHost::with_cores(4).good(&text);
    let spec: ImageSpec = serde_json::from_value(plan.stages[0].settings["spec"].clone()).unwrap();
    assert_eq!(spec.tensor().to_string(), "u8[batch, 32, 32, 1]");
    assert_eq!(spec.for_model().tensor().to_string(), "f32[batch, 1, 32, 32]");
    let (stage, run) = plan.batch_stages().next().unwrap();
    assert_eq!(run.layout.inputs[0].tensor.to_string(), "u8[batch, 32, 32, 1]");
    assert_eq!(run.layout.inputs[0].row_bytes, 32 * 32);
    let pixels =
        PixelInput { layout: Layout::Nchw, dtype: DType::F32, factor: vec![4.0 / 255.0], offset: vec![-2.0] };
    assert_eq!(plan.pixel_inputs(stage), [Some(pixels)]);
    let host = FakeHost::with_cores(4).good(DIGITS);
    assert_eq!(host.pixel_inputs(host.batch_stages().next().unwrap().0), [None]);
    let of_stage = |plan: &orchestra_plan::Plan| {
        plan.fingerprint.iter().find(|(name, _)| name == "stage `pixels`").unwrap().1.clone()
    };
    assert_ne!(of_stage(&host), of_stage(&plan), "results may differ in the last digit");
}
