//! Texts that a model takes: out of the values of a run, and as tensors of ONNX Runtime, which keeps copies. It runs nothing.

use std::borrow::Cow;
use std::ffi::c_char;
use std::ptr::{self, NonNull};

use orchestra_core::TextInput;
use orchestra_core::row_bytes::{StoredValue, read};
use orchestra_worker::engine::EngineRunError;
use orchestra_worker::frames::RunErrorKind;
use ort::memory::Allocator;
use ort::value::DynValue;
use ort::{AsPointer, sys};

/// For each input the texts of all rows, out of what the rows of a run have beside their slots: row by row a text or a list of texts for each input.
///
/// # Errors
/// An item has another number of texts than the input takes, or these bytes are no such values.
pub fn texts<'a>(
    inputs: &[TextInput],
    mut values: &'a [u8],
    rows: usize,
) -> Result<Vec<Vec<&'a str>>, EngineRunError> {
    let mut all = vec![Vec::new(); inputs.len()];
    for row in 0..rows {
        for (input, texts) in inputs.iter().zip(&mut all) {
            let (value, used) = read::<StoredValue<'_>>(values)
                .map_err(|item_error| EngineRunError::of_model(item_error.error))?;
            values = &values[used..];
            let (before, wanted) = (texts.len(), input.n_texts());
            add(&value, texts);
            let found = texts.len() - before;
            if found != wanted {
                let error = format!(
                    "input `{}` takes {wanted} texts of an item, and this one has {found}",
                    input.name
                );
                return Err(EngineRunError { kind: RunErrorKind::Row(row as u64), error });
            }
        }
    }
    Ok(all)
}

fn add<'a>(value: &StoredValue<'a>, texts: &mut Vec<&'a str>) {
    match value {
        StoredValue::Text(Cow::Borrowed(text)) => texts.push(text),
        StoredValue::List(rows) => rows.iter().flatten().for_each(|value| add(value, texts)),
        _ => {}
    }
}

/// A tensor of the texts of so many rows.
pub fn value(input: &TextInput, rows: usize, texts: &[&str]) -> ort::Result<DynValue> {
    let row = input.row.iter().map(|dim| dim.fixed().unwrap_or(1));
    let shape: Vec<i64> = [rows].into_iter().chain(row).map(|n| n as i64).collect();
    if texts.len() != rows.saturating_mul(input.n_texts()) {
        return Err(ort::Error::new(format!(
            "input `{}` has {} texts for {rows} rows",
            input.name,
            texts.len()
        )));
    }
    let allocator = Allocator::default();
    let (mut value, element) =
        (ptr::null_mut(), sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING);
    // SAFETY: the allocator is alive, and the out pointer is valid.
    let status = unsafe {
        (ort::api().CreateTensorAsOrtValue)(
            allocator.ptr().cast_mut(),
            shape.as_ptr(),
            shape.len(),
            element,
            &mut value,
        )
    };
    // SAFETY: the status was just returned by the API.
    unsafe { ort::Error::result_from_status(status) }?;
    let value = NonNull::new(value).ok_or_else(|| ort::Error::new("the runtime made a null tensor"))?;
    // SAFETY: a valid value without another owner.
    let value = unsafe { DynValue::from_ptr(value, Some(&allocator)) };
    for (at, text) in texts.iter().enumerate() {
        let mut buffer: *mut c_char = ptr::null_mut();
        // Not the calls that take C strings: a text may have zero bytes.
        // SAFETY: the tensor has this element, nothing else reads or writes it, and the out pointer is valid.
        let status = unsafe {
            (ort::api().GetResizedStringTensorElementBuffer)(
                value.ptr().cast_mut(),
                at,
                text.len(),
                &mut buffer,
            )
        };
        // SAFETY: the status was just returned by the API.
        unsafe { ort::Error::result_from_status(status) }?;
        // SAFETY: the buffer has as many bytes as were asked for, and lies in memory of the tensor.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), text.len()) };
    }
    Ok(value)
}
