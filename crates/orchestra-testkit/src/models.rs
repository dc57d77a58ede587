//! The test models, each one property of real ones. Every function writes a file into `folder` and gives its path.

use std::path::{Path, PathBuf};

use crate::trap_operator::{DOMAIN, OPERATOR};
use orchestra_core::{DType, Dim, TensorSpec};

use crate::images::{BLOCK_COLUMNS, BLOCK_ROWS, BLOCKS};
use crate::onnx::{Attribute, ModelBuilder};

/// `y = 2 x + 1`, f32 `x`, `y` of row shape `row`, any batch size.
pub fn affine(folder: &Path, row: &[usize]) -> anyhow::Result<PathBuf> {
    affine_of("affine", row, Dim::Dynamic).write(folder)
}

/// As [`affine`], but the model only accepts batches of `batch` rows.
pub fn affine_fixed(folder: &Path, row: &[usize], batch: usize) -> anyhow::Result<PathBuf> {
    affine_of("affine_fixed", row, Dim::Fixed(batch)).write(folder)
}

/// Reads the index out of an image of [`crate::images`]: f32 `pixels` of row shape `[channels, height, width]` to f32 `blocks` of row
/// shape `[32]`, the mean of each block, for [`crate::images::index_of_blocks`]. `height` must be a multiple of 4, `width` of 8.
pub fn blocks(folder: &Path, row: [usize; 3]) -> anyhow::Result<PathBuf> {
    let model = ModelBuilder::new("blocks").input(&spec("pixels", DType::F32, &row));
    mean_blocks(model, "pixels", row).write(folder)
}

/// As [`blocks`], but slow on purpose: the means pass through `steps` products with a unit matrix of 512 by 512, about half a million
/// operations per row and step.
pub fn slow_blocks(folder: &Path, row: [usize; 3], steps: usize) -> anyhow::Result<PathBuf> {
    let model = ModelBuilder::new("slow_blocks").input(&spec("pixels", DType::F32, &row));
    slow_mean_blocks(model, "pixels", row, steps).write(folder)
}

/// As [`blocks_behind_trap`], and as slow as [`slow_blocks`].
pub fn slow_blocks_behind_trap(folder: &Path, row: [usize; 3], steps: usize) -> anyhow::Result<PathBuf> {
    slow_mean_blocks(behind_trap("slow_blocks_behind_trap", row), "passed", row, steps).write(folder)
}

fn slow_mean_blocks(model: ModelBuilder, pixels: &str, row: [usize; 3], steps: usize) -> ModelBuilder {
    let model = means_of_blocks(model, pixels, "means", row).output(&spec("blocks", DType::F32, &[BLOCKS]));
    slowly(model, ["means", "blocks"], BLOCKS, 512, steps)
}

/// Tensors `from` of this width to `to`, which are the same, through `steps` products of `size` by `size`.
fn slowly(
    model: ModelBuilder,
    [from, to]: [&str; 2],
    width: usize,
    size: usize,
    steps: usize,
) -> ModelBuilder {
    let unit = |rows: usize, columns: usize| -> Vec<f32> {
        (0..rows * columns).map(|i| if i / columns == i % columns { 1.0 } else { 0.0 }).collect()
    };
    let mut model = model
        .constant("widen", &[width, size], &unit(width, size))
        .constant("unit", &[size, size], &unit(size, size))
        .constant("narrow", &[size, width], &unit(size, width))
        .node("MatMul", &[from, "widen"], &["step_0"], &[]);
    for step in 0..steps {
        let (from, to) = (format!("step_{step}"), format!("step_{}", step + 1));
        model = model.node("MatMul", &[&from, "unit"], &[&to], &[]);
    }
    model.node("MatMul", &[&format!("step_{steps}"), "narrow"], &[to], &[])
}

/// As [`blocks`], behind the operator that crashes, hangs or fails by the pixels' values ([`crate::Trap`]); needs
/// [`crate::trap_library`].
pub fn blocks_behind_trap(folder: &Path, row: [usize; 3]) -> anyhow::Result<PathBuf> {
    mean_blocks(behind_trap("blocks_behind_trap", row), "passed", row).write(folder)
}

/// As [`blocks_behind_trap`] for any number of blocks of 8 by 4 pixels: height and width are open.
pub fn open_blocks_behind_trap(folder: &Path) -> anyhow::Result<PathBuf> {
    let open = |name| {
        let row = vec![Dim::Fixed(1), Dim::Dynamic, Dim::Dynamic];
        TensorSpec { row, ..spec(name, DType::F32, &[]) }
    };
    let block = Attribute::Ints(vec![8, 4]);
    ModelBuilder::new("open_blocks_behind_trap")
        .input(&open("pixels"))
        .output(&open("blocks"))
        .node_of(DOMAIN, OPERATOR, &["pixels"], &["passed"], &[])
        .node("AveragePool", &["passed"], &["blocks"], &[("kernel_shape", block.clone()), ("strides", block)])
        .write(folder)
}

/// From `pixels` to the same, `passed`.
fn behind_trap(name: &str, row: [usize; 3]) -> ModelBuilder {
    let model = ModelBuilder::new(name).input(&spec("pixels", DType::F32, &row));
    model.node_of(DOMAIN, OPERATOR, &["pixels"], &["passed"], &[])
}

/// As [`blocks_behind_trap`], and each pixel is multiplied by the one number, 1, in `weights.bin` beside it.
pub fn weighted_blocks_behind_trap(folder: &Path, row: [usize; 3]) -> anyhow::Result<PathBuf> {
    std::fs::write(folder.join("weights.bin"), 1_f32.to_le_bytes())?;
    let model = behind_trap("weighted_blocks_behind_trap", row).external("weight", &[1], "weights.bin").node(
        "Mul",
        &["passed", "weight"],
        &["weighted"],
        &[],
    );
    mean_blocks(model, "weighted", row).write(folder)
}

/// The operator of [`crate::Trap`] alone: f32 `x` to the same `y`, row shape `row`.
pub fn trap(folder: &Path, row: &[usize]) -> anyhow::Result<PathBuf> {
    plain("trap", row).node_of(DOMAIN, OPERATOR, &["x"], &["y"], &[]).write(folder)
}

/// One more: f32 `x` of row shape `[1]`, through the operator of [`crate::Trap`], to `y` = x + 1.
pub fn one_more(folder: &Path) -> anyhow::Result<PathBuf> {
    plain("one_more", &[1])
        .constant("one", &[], &[1.0])
        .node_of(DOMAIN, OPERATOR, &["x"], &["passed"], &[])
        .node("Add", &["passed", "one"], &["y"], &[])
        .write(folder)
}

/// A running sum: f32 `x` and `total` of row shape `[]`, `x` through the operator of [`crate::Trap`], to `next` = total + x.
pub fn running_sum_behind_trap(folder: &Path) -> anyhow::Result<PathBuf> {
    let trapped = |model: ModelBuilder| model.node_of(DOMAIN, OPERATOR, &["x"], &["passed"], &[]);
    summed("running_sum_behind_trap", trapped, "passed").write(folder)
}

/// The same without the operator.
pub fn running_sum(folder: &Path) -> anyhow::Result<PathBuf> {
    summed("running_sum", |model| model, "x").write(folder)
}

fn summed(name: &str, before: impl Fn(ModelBuilder) -> ModelBuilder, of: &str) -> ModelBuilder {
    let [x, total, next] = ["x", "total", "next"].map(|name| spec(name, DType::F32, &[]));
    let model = before(ModelBuilder::new(name).input(&x).input(&total).output(&next));
    model.node("Add", &["total", of], &["next"], &[])
}

/// Two inputs and two outputs: f32 `a`, `b` of row shape `row` to `sum` = a + b and `difference` = a - b.
pub fn two_in_two_out(folder: &Path, row: &[usize]) -> anyhow::Result<PathBuf> {
    ModelBuilder::new("two_in_two_out")
        .input(&spec("a", DType::F32, row))
        .input(&spec("b", DType::F32, row))
        .output(&spec("sum", DType::F32, row))
        .output(&spec("difference", DType::F32, row))
        .node("Add", &["a", "b"], &["sum"], &[])
        .node("Sub", &["a", "b"], &["difference"], &[])
        .write(folder)
}

/// A round of Newton's method for the square root of `a`: f32 `x`, `a` to `next` = (x + a / x) / 2 and `residual` = |next * next - a|, row
/// shape `[1]` each. Before that `x` passes through `steps` products of 256 by 256 that leave it as it is: about 130,000 operations each.
pub fn newton(folder: &Path, steps: usize) -> anyhow::Result<PathBuf> {
    let mut model = ModelBuilder::new("newton")
        .input(&spec("x", DType::F32, &[1]))
        .input(&spec("a", DType::F32, &[1]))
        .output(&spec("next", DType::F32, &[1]))
        .output(&spec("residual", DType::F32, &[1]))
        .constant("half", &[], &[0.5]);
    let mut from = "x";
    if steps > 0 {
        model = slowly(model, ["x", "same"], 1, 256, steps);
        from = "same";
    }
    model
        .node("Div", &["a", from], &["quotient"], &[])
        .node("Add", &[from, "quotient"], &["sum"], &[])
        .node("Mul", &["sum", "half"], &["next"], &[])
        .node("Mul", &["next", "next"], &["square"], &[])
        .node("Sub", &["square", "a"], &["error"], &[])
        .node("Abs", &["error"], &["residual"], &[])
        .write(folder)
}

/// Of f32 `x` of row shape `[1]`: `same`, which is `x`; `wide`, four times that in a row; `whole`, cut to i64.
pub fn two_shapes(folder: &Path) -> anyhow::Result<PathBuf> {
    ModelBuilder::new("two_shapes")
        .input(&spec("x", DType::F32, &[1]))
        .output(&spec("same", DType::F32, &[1]))
        .output(&spec("wide", DType::F32, &[4]))
        .output(&spec("whole", DType::I64, &[1]))
        .node("Identity", &["x"], &["same"], &[])
        .node("Concat", &["x", "x", "x", "x"], &["wide"], &[("axis", Attribute::Int(1))])
        .node("Cast", &["x"], &["whole"], &[("to", Attribute::Int(7))])
        .write(folder)
}

/// `y = x` with elements of `dtype`, row shape `row`.
pub fn identity(folder: &Path, dtype: DType, row: &[usize]) -> anyhow::Result<PathBuf> {
    ModelBuilder::new(&format!("identity_{dtype}"))
        .input(&spec("x", dtype, row))
        .output(&spec("y", dtype, row))
        .node("Identity", &["x"], &["y"], &[])
        .write(folder)
}

/// As [`identity`] of f32, and its metadata has this entry, as those of recognition models name their characters.
pub fn identity_with_metadata(
    folder: &Path,
    row: &[usize],
    key: &str,
    value: &str,
) -> anyhow::Result<PathBuf> {
    plain("identity_with_metadata", row)
        .node("Identity", &["x"], &["y"], &[])
        .metadata(key, value)
        .write(folder)
}

/// An output whose shape is known only after the run: of f32 `x` with row shape `[n]`, `y` keeps the columns that are positive in some
/// row of the batch. Row shape `[?]`.
pub fn positive_columns(folder: &Path, n: usize) -> anyhow::Result<PathBuf> {
    let axis = |a: i64| [("axis", Attribute::Int(a))];
    ModelBuilder::new("positive_columns")
        .input(&spec("x", DType::F32, &[n]))
        .output(&TensorSpec { row: vec![Dim::Dynamic], ..spec("y", DType::F32, &[]) })
        .constant("zero", &[], &[0.0])
        .node(
            "ReduceMax",
            &["x"],
            &["largest"],
            &[("axes", Attribute::Ints(vec![0])), ("keepdims", Attribute::Int(0))],
        )
        .node("Greater", &["largest", "zero"], &["chosen"], &[])
        .node("Compress", &["x", "chosen"], &["y"], &axis(1))
        .write(folder)
}

/// f32 `x` less the mean of its batch, `y` of the same row shape `row`: an output of the right shape in which items change each other.
pub fn less_the_mean(folder: &Path, row: &[usize]) -> anyhow::Result<PathBuf> {
    less_the_mean_of(ModelBuilder::new("less_the_mean"), row, "x").write(folder)
}

/// As [`less_the_mean`], with the operator of [`crate::Trap`] in front.
pub fn less_the_mean_behind_trap(folder: &Path, row: &[usize]) -> anyhow::Result<PathBuf> {
    let model =
        ModelBuilder::new("less_the_mean_behind_trap").node_of(DOMAIN, OPERATOR, &["x"], &["passed"], &[]);
    less_the_mean_of(model, row, "passed").write(folder)
}

fn less_the_mean_of(model: ModelBuilder, row: &[usize], from: &str) -> ModelBuilder {
    let of_batch = [("axes", Attribute::Ints(vec![0])), ("keepdims", Attribute::Int(1))];
    model
        .input(&spec("x", DType::F32, row))
        .output(&spec("y", DType::F32, row))
        .node("ReduceMean", &[from], &["mean"], &of_batch)
        .node("Sub", &[from, "mean"], &["y"], &[])
}

/// An output that cannot be cut into items: the places of all non-zero elements of a batch, i64 `places` of shape `[2, ?]`.
pub fn places_of_nonzero(folder: &Path, n: usize) -> anyhow::Result<PathBuf> {
    ModelBuilder::new("places_of_nonzero")
        .input(&spec("x", DType::F32, &[n]))
        .output(&TensorSpec {
            row: vec![Dim::Dynamic],
            batch: Dim::Fixed(2),
            ..spec("places", DType::I64, &[])
        })
        .node("NonZero", &["x"], &["places"], &[])
        .write(folder)
}

/// Of one number, `n` that are the same, in an output of which the file says no size: f32 `x` of row shape `[1]` to `y` of `[?]`.
pub fn stretched(folder: &Path, n: usize) -> anyhow::Result<PathBuf> {
    ModelBuilder::new("stretched")
        .input(&spec("x", DType::F32, &[1]))
        .output(&TensorSpec { row: vec![Dim::Dynamic], ..spec("y", DType::F32, &[]) })
        .constant("ones", &[1, n], &vec![1.0; n])
        .node("MatMul", &["x", "ones"], &["y"], &[])
        .write(folder)
}

/// A detector that finds `n` boxes on every image: f32 `pixels` of row shape `row` to f32 `boxes` of row shape `[n, 5]`, from left to right and
/// side by side, each as high as the image, relative and with a score of 1.
pub fn constant_boxes(folder: &Path, row: [usize; 3], n: usize) -> anyhow::Result<PathBuf> {
    let edge = |at: usize| at as f32 / n as f32;
    let boxes: Vec<f32> = (0..n).flat_map(|at| [edge(at), 0.0, edge(at + 1), 1.0, 1.0]).collect();
    let over = |axes: Vec<i64>, keepdims: i64| {
        [("axes", Attribute::Ints(axes)), ("keepdims", Attribute::Int(keepdims))]
    };
    ModelBuilder::new("constant_boxes")
        .input(&spec("pixels", DType::F32, &row))
        .output(&spec("boxes", DType::F32, &[n, 5]))
        .constant("zero", &[], &[0.0])
        .constant("all", &[1, n, 5], &boxes)
        .node("ReduceMean", &["pixels"], &["flat"], &over(vec![1], 0))
        .node("ReduceMean", &["flat"], &["mean"], &over(vec![1, 2], 1))
        .node("Mul", &["mean", "zero"], &["nothing"], &[])
        .node("Add", &["nothing", "all"], &["boxes"], &[])
        .write(folder)
}

/// Slow on purpose: `steps` matrix products of `size` by `size`, about `2 * steps * size * size` operations per row. f32 `x` to `y` of
/// row shape `[size]`; each step shifts the row by one place, so `y[(i + steps) % size] = x[i]`.
pub fn slow(folder: &Path, size: usize, steps: usize) -> anyhow::Result<PathBuf> {
    let mut shift = vec![0.0; size * size];
    for i in 0..size {
        shift[i * size + (i + 1) % size] = 1.0;
    }
    let mut model = ModelBuilder::new("slow")
        .input(&spec("x", DType::F32, &[size]))
        .output(&spec("y", DType::F32, &[size]))
        .constant("shift", &[size, size], &shift);
    let mut from = "x".to_owned();
    for step in 0..steps.max(1) {
        let to = if step + 1 >= steps { "y".to_owned() } else { format!("step_{step}") };
        model = model.node("MatMul", &[&from, "shift"], &[&to], &[]);
        from = to;
    }
    model.write(folder)
}

/// A file that is a valid model but for an operator that no runtime has.
pub fn unknown_operator(folder: &Path) -> anyhow::Result<PathBuf> {
    plain("unknown_operator", &[4]).node("Frobnicate", &["x"], &["y"], &[]).write(folder)
}

pub fn garbage(folder: &Path) -> anyhow::Result<PathBuf> {
    let path = folder.join("garbage.onnx");
    std::fs::write(&path, b"\xff\xfethis is not a protobuf message")?;
    Ok(path)
}

/// A model with an input `x` and an output `y`, both of these rows.
fn plain(name: &str, row: &[usize]) -> ModelBuilder {
    ModelBuilder::new(name).input(&spec("x", DType::F32, row)).output(&spec("y", DType::F32, row))
}

/// A tensor with an open batch dimension.
pub fn spec(name: &str, dtype: DType, row: &[usize]) -> TensorSpec {
    let row = row.iter().copied().map(Dim::Fixed).collect();
    TensorSpec { name: name.to_owned(), dtype, row, batch: Dim::Dynamic }
}

fn affine_of(name: &str, row: &[usize], batch: Dim) -> ModelBuilder {
    ModelBuilder::new(name)
        .input(&TensorSpec { batch, ..spec("x", DType::F32, row) })
        .output(&TensorSpec { batch, ..spec("y", DType::F32, row) })
        .constant("two", &[], &[2.0])
        .constant("one", &[], &[1.0])
        .node("Mul", &["x", "two"], &["doubled"], &[])
        .node("Add", &["doubled", "one"], &["y"], &[])
}

fn mean_blocks(model: ModelBuilder, from: &str, row: [usize; 3]) -> ModelBuilder {
    means_of_blocks(model.output(&spec("blocks", DType::F32, &[BLOCKS])), from, "blocks", row)
}

fn means_of_blocks(
    model: ModelBuilder,
    from: &str,
    to: &str,
    [_, height, width]: [usize; 3],
) -> ModelBuilder {
    let block = vec![(height / BLOCK_ROWS) as i64, (width / BLOCK_COLUMNS) as i64];
    model
        .node("ReduceMean", &[from], &["gray"], &[("axes", Attribute::Ints(vec![1]))])
        .node(
            "AveragePool",
            &["gray"],
            &["pooled"],
            &[("kernel_shape", Attribute::Ints(block.clone())), ("strides", Attribute::Ints(block))],
        )
        .node("Flatten", &["pooled"], &[to], &[("axis", Attribute::Int(1))])
}
