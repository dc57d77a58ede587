//! How much `fast = true` changes the pixels of photographs: `cargo run --release --example fast_difference -- SIDE FILE.jpg ...`.
//!
//! For each file it prints the mean and the largest difference of a square row of `SIDE` pixels to the same row of the full decode, in levels
//! of 255, with bilinear resizing. The numbers of docs/guide/workflow-file.md come from here.

use std::error::Error;

use orchestra_core::{Channels, DType, Fit, ImageSpec, Layout, ResizeFilter};
use orchestra_media::Preparer;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let side: u32 = arguments.next().ok_or("usage: fast_difference SIDE FILE.jpg ...")?.parse()?;
    let exact = ImageSpec {
        size: [side, side],
        fit: Fit::Cover,
        shorter: 0,
        filter: ResizeFilter::Bilinear,
        color: Channels::Rgb,
        layout: Layout::Nhwc,
        dtype: DType::U8,
        scale: 1.0,
        mean: vec![0.0; 3],
        std: vec![1.0; 3],
        pad: vec![0; 3],
        max_pixels: 1 << 28,
        fast: false,
        in_graph: None,
        trim: None,
    };
    let fast = ImageSpec { fast: true, ..exact.clone() };
    let mut preparer = Preparer::new();
    let mut rows = [vec![0; (side * side * 3) as usize], vec![0; (side * side * 3) as usize]];
    for file in arguments {
        let bytes = std::fs::read(&file)?;
        for (spec, row) in [&exact, &fast].into_iter().zip(&mut rows) {
            preparer.decode_for(&bytes, spec.max_pixels, &[spec])?;
            preparer.write_row(spec, row)?;
        }
        let differences = rows[0].iter().zip(&rows[1]).map(|(a, b)| a.abs_diff(*b));
        let largest = differences.clone().max().unwrap_or(0);
        let mean = differences.map(f64::from).sum::<f64>() / rows[0].len() as f64;
        println!("{file}: mean {mean:.2}, largest {largest}");
    }
    Ok(())
}
