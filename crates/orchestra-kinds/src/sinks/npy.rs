//! `kind = "npy"`: a NumPy array per record, in a file named after its item.

use std::sync::Arc;

use orchestra_core::data::{ItemError, Value};
use orchestra_core::shapes::{Encoder, ItemInfo};
use orchestra_plan::{Fields, Input, ReadBack, Reported, TypedSink, Writes, settings};
use orchestra_store::ObjectOutput;

use super::shared::npy_file::write_array;
use super::shared::read_back::read_lines;
use super::shared::{cannot_write, only_column};
use crate::objects;

settings! {
    pub struct Npy {}
}

impl TypedSink for Npy {
    const NAME: &'static str = "npy";
    const ABOUT: &'static str = "A NumPy array per record, in a file of its own: `path` is a folder, and the array of item `a/b.png` is `a/b.png.npy` in it, that of its \
         part 3 `a/b.png.3.npy`; items of a manifest, whose names may repeat, have their number there, too. `index.jsonl` in that folder has a line \
         per file, `{\"item\", \"index\", \"source\", \"file\", \"bytes\"}`. It takes one tensor.";
    const WRITES: Writes = Writes::FileEach;
    const READ_BACK: Option<ReadBack> = Some(read_lines);
    const OBJECTS: fn() -> Result<Arc<dyn ObjectOutput>, String> = objects::output;

    fn connect(self, input: &Input, fields: &mut Fields<'_, '_>) -> Result<Arc<dyn Encoder>, Reported> {
        const HELP: &str = "an array is made of a tensor";
        let column = only_column(input, fields, ("tensor", HELP), |column| column.ty.tensor().is_some())?;
        match column.ty.tensor() {
            Some(_) => Ok(Arc::new(NpyEncoder)),
            None => cannot_write(column, input, fields, HELP),
        }
    }
}

#[derive(Debug)]
struct NpyEncoder;

impl Encoder for NpyEncoder {
    fn encode(&self, _: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), ItemError> {
        let [value] = row else {
            return Err(ItemError::result("internal error: expected one tensor; this is a bug"));
        };
        value.with_tensor(|tensor| write_array(tensor, out))
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::data::TensorView;
    use orchestra_core::{DType, ItemId, SourceId};

    use super::super::shared::npy_file::ALIGNMENT;
    use super::*;
    use crate::sources::reading::npy_header::Header;

    #[test]
    fn our_own_reader_finds_type_shape_and_data() {
        for (dtype, shape) in [
            (DType::F32, &[2, 3][..]),
            (DType::F16, &[5]),
            (DType::I64, &[1, 1, 1, 1, 1, 1, 1, 1]),
            (DType::I32, &[7]),
            (DType::U8, &[3, 1]),
            (DType::Bool, &[64]),
        ] {
            let n = shape.iter().product::<usize>() * dtype.size_bytes();
            let data: Vec<u8> = (0..n).map(|i| u8::from(i % 3 == 0)).collect();
            let item =
                ItemInfo { name: "a", id: ItemId { source: SourceId(0), index: 0 }, source: "s", parts: &[] };
            let mut out = Vec::new();
            let view = TensorView { name: "x", dtype, shape, data: &data };
            NpyEncoder.encode(&item, &[Value::Tensor(view)], &mut out).unwrap();
            let header = Header::parse(&out).unwrap();
            assert_eq!((header.dtype, &header.shape[..], header.is_swapped), (dtype, shape, false));
            assert_eq!((header.data % ALIGNMENT, &out[header.data..]), (0, &data[..]));
        }
    }
}
