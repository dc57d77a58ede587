//! `kind = "npy"`: a NumPy array per record, in a file named after its item.

use std::sync::Arc;

use orchestra_core::DType;
use orchestra_core::data::{Refusal, TensorView, Value};
use orchestra_core::shapes::{Encoder, ItemInfo};
use orchestra_plan::{Fields, Input, ReadBack, SinkKind, Writes, list};
use orchestra_store::ObjectOutput;

use super::jsonl::read_lines;
use crate::sources::objects;

pub struct Npy;

impl SinkKind for Npy {
    fn name(&self) -> &'static str {
        "npy"
    }

    fn about(&self) -> &'static str {
        "A NumPy array per record, in a file of its own: `path` is a folder, and the array of item `a/b.png` is `a/b.png.npy` in it, that of its \
         part 3 `a/b.png.3.npy`; items of a manifest, whose names may repeat, have their number there, too. `index.jsonl` in that folder has a line \
         per file, `{\"item\", \"index\", \"source\", \"file\", \"bytes\"}`. It takes one tensor."
    }

    fn extension(&self) -> &'static str {
        "npy"
    }

    fn writes(&self) -> Writes {
        Writes::FileEach
    }

    fn read_back(&self) -> Option<ReadBack> {
        Some(read_lines)
    }

    fn objects(&self) -> Result<Arc<dyn ObjectOutput>, String> {
        objects::output()
    }

    fn connect(&self, input: &Input, fields: &mut Fields<'_, '_>) -> Option<Arc<dyn Encoder>> {
        match &input.gives.0[..] {
            [column] if column.ty.tensor().is_some() => Some(Arc::new(Array)),
            columns => {
                let what = &fields.what;
                let message = format!("{what} takes one tensor, and `{}` gives {}", input.name, input.gives);
                let tensors = columns.iter().filter(|column| column.ty.tensor().is_some());
                let help = match list(tensors.map(|column| column.name.as_str())) {
                    names if names.is_empty() => "an array is made of a tensor".to_owned(),
                    names => format!("name one: from = \"stage.tensor\"; tensors: {names}"),
                };
                fields.diags.error(input.span, message).help(help);
                None
            }
        }
    }
}

/// Header and data begin at multiples of this.
const ALIGNMENT: usize = 64;

#[derive(Debug)]
struct Array;

impl Encoder for Array {
    fn encode(&self, _: &ItemInfo<'_>, row: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), Refusal> {
        let [value] = row else {
            return Err(Refusal::result("internal error: expected one tensor; this is a bug"));
        };
        value.with_tensor(|tensor| write_array(tensor, out))
    }
}

/// Appends the tensor as an array file. Its data begins at a multiple of [`ALIGNMENT`] of the file.
pub(super) fn write_array(tensor: &TensorView<'_>, out: &mut Vec<u8>) -> Result<(), Refusal> {
    let order = if cfg!(target_endian = "little") { '<' } else { '>' };
    let element = match tensor.dtype {
        DType::F32 => format!("{order}f4"),
        DType::F16 => format!("{order}f2"),
        DType::I64 => format!("{order}i8"),
        DType::I32 => format!("{order}i4"),
        DType::U8 => "|u1".to_owned(),
        DType::Bool => "|b1".to_owned(),
    };
    let dims: String = tensor.shape.iter().map(|dim| format!("{dim}, ")).collect();
    let mut header = format!("{{'descr': '{element}', 'fortran_order': False, 'shape': ({dims}), }}");
    // Magic, version and length take ten bytes, the line feed one.
    let padding = (header.len() + 11).next_multiple_of(ALIGNMENT) - header.len() - 11;
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    let Ok(len) = u16::try_from(header.len()) else {
        return Err(Refusal::result("the tensor has too many dimensions for an array file"));
    };
    out.extend_from_slice(b"\x93NUMPY\x01\x00");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(tensor.data);
    Ok(())
}

#[cfg(test)]
mod tests {
    use orchestra_core::{ItemId, SourceId};

    use super::*;
    use crate::sources::npy::Header;

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
            Array.encode(&item, &[Value::Tensor(view)], &mut out).unwrap();
            let header = Header::parse(&out).unwrap();
            assert_eq!((header.dtype, &header.shape[..], header.is_swapped), (dtype, shape, false));
            assert_eq!((header.data % ALIGNMENT, &out[header.data..]), (0, &data[..]));
        }
    }
}
