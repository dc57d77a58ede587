//! A tensor as a `.npy` file. Opens none.

use orchestra_core::data::{ItemError, TensorView};

/// Header and data begin at multiples of this.
pub const ALIGNMENT: usize = 64;

/// Appends the tensor as an array file. Its data begins at a multiple of [`ALIGNMENT`] of the file.
pub fn write_array(tensor: &TensorView<'_>, out: &mut Vec<u8>) -> Result<(), ItemError> {
    let order = match tensor.dtype.size_bytes() {
        1 => '|',
        _ if cfg!(target_endian = "little") => '<',
        _ => '>',
    };
    let element = tensor.dtype.npy_code();
    let dims: String = tensor.shape.iter().map(|dim| format!("{dim}, ")).collect();
    let mut header = format!("{{'descr': '{order}{element}', 'fortran_order': False, 'shape': ({dims}), }}");
    // Magic, version and length take ten bytes, the line feed one.
    let padding = (header.len() + 11).next_multiple_of(ALIGNMENT) - header.len() - 11;
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    let Ok(len) = u16::try_from(header.len()) else {
        return Err(ItemError::result("the tensor has too many dimensions for an array file"));
    };
    out.extend_from_slice(b"\x93NUMPY\x01\x00");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(tensor.data);
    Ok(())
}
