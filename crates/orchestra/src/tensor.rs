//! Tensors of requests and answers, by name. TensorElements are in native byte order, row-major. It knows no model.

use std::fmt;
use std::ops::{Index, Range};
use std::sync::Arc;

use bytemuck::{CheckedBitPattern, NoUninit};
use bytes::Bytes;
use orchestra_core::DType;
use orchestra_core::data::{Column, OwnedValue};
use thiserror::Error;

/// A number, or `true` and `false`, as an element of tensors.
pub trait TensorElement: CheckedBitPattern + NoUninit + Send + Sync + sealed::ElementSeal {
    /// The type of these elements.
    const DTYPE: DType;
}

mod sealed {
    pub trait ElementSeal {}
}

macro_rules! elements {
    ($($(#[$cfg:meta])? $ty:ty: $dtype:ident),*) => {
        $($(#[$cfg])? impl sealed::ElementSeal for $ty {}
        $(#[$cfg])? impl TensorElement for $ty {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}

elements! { f64: F64, f32: F32, i64: I64, i32: I32, i16: I16, u8: U8, bool: Bool, #[cfg(feature = "half")] half::f16: F16 }

/// Numbers or texts of a shape, of which the first dimension counts rows. Clones share the elements.
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    shape: Vec<usize>,
    elements: TensorElements,
}

#[derive(Clone, PartialEq, Eq)]
enum TensorElements {
    /// As many bytes as type and shape say.
    Numbers(DType, Bytes),
    /// As many as the shape says.
    Texts(Arc<[String]>),
}

/// What was made of elements and a shape, or read as a type, does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TensorError {
    /// There are not as many elements as the shape says.
    #[error("there are {found} elements, and shape {shape:?} has {}", product(shape).map_or("too many".to_owned(), |n| n.to_string()))]
    Length {
        /// The shape that was asked for.
        shape: Vec<usize>,
        /// How many elements there are.
        found: usize,
    },
    /// The elements are of another type.
    #[error("the tensor is of type {found}, not {asked}")]
    Type {
        /// The type that was asked for.
        asked: &'static str,
        /// That of the elements.
        found: &'static str,
    },
    /// The bytes are no elements of the type: a `bool` is 0 or 1.
    #[error("a byte of the tensor is neither 0 nor 1, and its type is bool")]
    NoBool,
}

fn product(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim))
}

/// TensorElements that lie in bytes which others share.
struct AsBytes<T>(Vec<T>);

impl<T: NoUninit> AsRef<[u8]> for AsBytes<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Tensor {
    /// TensorElements in row-major order, which are not copied. The first dimension of `shape` counts the rows.
    ///
    /// # Errors
    /// [`TensorError::Length`].
    pub fn new<T: TensorElement>(
        shape: impl Into<Vec<usize>>,
        elements: Vec<T>,
    ) -> Result<Self, TensorError> {
        let shape = shape.into();
        if product(&shape) != Some(elements.len()) {
            return Err(TensorError::Length { shape, found: elements.len() });
        }
        Ok(Self { shape, elements: TensorElements::Numbers(T::DTYPE, Bytes::from_owner(AsBytes(elements))) })
    }

    /// As [`Tensor::new`], of elements in native byte order. They are copied where their address does not fit their type.
    ///
    /// # Errors
    /// [`TensorError::Length`] and, of `bool`, [`TensorError::NoBool`].
    pub fn from_bytes(
        dtype: DType,
        shape: impl Into<Vec<usize>>,
        bytes: impl Into<Bytes>,
    ) -> Result<Self, TensorError> {
        let (shape, bytes) = (shape.into(), bytes.into());
        let expected = product(&shape).and_then(|n| n.checked_mul(dtype.size_bytes()));
        if expected != Some(bytes.len()) {
            return Err(TensorError::Length { shape, found: bytes.len() / dtype.size_bytes() });
        }
        if dtype == DType::Bool && bytes.iter().any(|byte| *byte > 1) {
            return Err(TensorError::NoBool);
        }
        let is_aligned = bytes.as_ptr().addr().is_multiple_of(dtype.size_bytes());
        let bytes = if is_aligned { bytes } else { Self::aligned(&[&bytes]) };
        Ok(Self { shape, elements: TensorElements::Numbers(dtype, bytes) })
    }

    /// Texts in row-major order.
    ///
    /// # Errors
    /// [`TensorError::Length`].
    pub fn texts(shape: impl Into<Vec<usize>>, texts: Vec<String>) -> Result<Self, TensorError> {
        let shape = shape.into();
        if product(&shape) != Some(texts.len()) {
            return Err(TensorError::Length { shape, found: texts.len() });
        }
        Ok(Self { shape, elements: TensorElements::Texts(texts.into()) })
    }

    /// `n` rows of the same type and shape, in pieces.
    pub(crate) fn of_rows(dtype: DType, n: usize, row: &[usize], pieces: &[&[u8]]) -> Self {
        Self::of_aligned(dtype, n, row, Self::aligned(pieces))
    }

    /// The pieces behind each other, at an address that fits every type.
    fn aligned(pieces: &[&[u8]]) -> Bytes {
        let n_bytes = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let mut words = vec![0_u64; n_bytes.div_ceil(size_of::<u64>())];
        let mut rest = bytemuck::cast_slice_mut::<u64, u8>(&mut words);
        for piece in pieces {
            let (to, behind) = rest.split_at_mut(piece.len());
            to.copy_from_slice(piece);
            rest = behind;
        }
        Bytes::from_owner(AsBytes(words)).slice(..n_bytes)
    }

    /// The same of one piece, at an address that fits every type.
    pub(crate) fn of_aligned(dtype: DType, n: usize, row: &[usize], bytes: Bytes) -> Self {
        Self { shape: [&[n], row].concat(), elements: TensorElements::Numbers(dtype, bytes) }
    }

    /// The same elements with another shape.
    ///
    /// # Errors
    /// [`TensorError::Length`].
    pub fn reshaped(self, shape: impl Into<Vec<usize>>) -> Result<Self, TensorError> {
        let (shape, n) = (shape.into(), product(&self.shape));
        if product(&shape) != n {
            return Err(TensorError::Length { shape, found: n.unwrap_or(usize::MAX) });
        }
        Ok(Self { shape, ..self })
    }

    /// The whole shape; the first dimension counts the rows.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The type of its elements. `None`: they are texts.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        match self.elements {
            TensorElements::Numbers(dtype, _) => Some(dtype),
            TensorElements::Texts(_) => None,
        }
    }

    /// The elements, where they lie.
    ///
    /// # Errors
    /// [`TensorError::Type`]: they are of another type. Nothing is converted.
    pub fn as_slice<T: TensorElement>(&self) -> Result<&[T], TensorError> {
        match &self.elements {
            // Without elements, their address may be any.
            TensorElements::Numbers(dtype, bytes) if *dtype == T::DTYPE && bytes.is_empty() => Ok(&[]),
            TensorElements::Numbers(dtype, bytes) if *dtype == T::DTYPE => {
                Ok(bytemuck::checked::cast_slice::<u8, T>(bytes))
            }
            _ => Err(TensorError::Type { asked: T::DTYPE.name(), found: self.type_name() }),
        }
    }

    /// The elements in native byte order.
    ///
    /// # Errors
    /// [`TensorError::Type`]: they are texts.
    pub fn as_bytes(&self) -> Result<&Bytes, TensorError> {
        match &self.elements {
            TensorElements::Numbers(_, bytes) => Ok(bytes),
            TensorElements::Texts(_) => Err(TensorError::Type { asked: "numbers", found: "text" }),
        }
    }

    /// The elements, which are texts.
    ///
    /// # Errors
    /// [`TensorError::Type`]: they are numbers.
    pub fn as_texts(&self) -> Result<&[String], TensorError> {
        match &self.elements {
            TensorElements::Texts(texts) => Ok(texts),
            TensorElements::Numbers(dtype, _) => {
                Err(TensorError::Type { asked: "text", found: dtype.name() })
            }
        }
    }

    /// The name of its type, as workflow files have it.
    pub(crate) fn type_name(&self) -> &'static str {
        self.dtype().map_or("text", DType::name)
    }

    /// How many rows it has. A single value has none.
    pub(crate) fn n_rows(&self) -> usize {
        self.shape.first().copied().unwrap_or_default()
    }

    /// The elements of some rows of numbers; none of texts.
    pub(crate) fn rows(&self, rows: Range<usize>) -> &[u8] {
        let TensorElements::Numbers(_, bytes) = &self.elements else { return &[] };
        let n = bytes.len() / self.n_rows().max(1);
        &bytes[rows.start * n..rows.end * n]
    }

    /// A row as a value of its own.
    pub(crate) fn owned_row(&self, row: usize) -> OwnedValue {
        match &self.elements {
            TensorElements::Numbers(dtype, _) => OwnedValue::Tensor {
                name: "".into(),
                dtype: *dtype,
                shape: self.shape[1..].into(),
                data: self.rows(row..row + 1).into(),
            },
            TensorElements::Texts(texts) => {
                let n = texts.len() / self.n_rows().max(1);
                let text = |text: &String| OwnedValue::Text(text.as_str().into());
                match self.shape.len() {
                    0 | 1 => text(&texts[row]),
                    _ => OwnedValue::List(texts[row * n..][..n].iter().map(|of| vec![text(of)]).collect()),
                }
            }
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?})", self.type_name(), self.shape)
    }
}

/// A value of a request: the shape is that of one item, without a dimension for rows.
impl From<Tensor> for OwnedValue {
    fn from(tensor: Tensor) -> Self {
        match tensor.elements {
            TensorElements::Numbers(dtype, bytes) => OwnedValue::Tensor {
                name: "".into(),
                dtype,
                shape: tensor.shape.into(),
                data: bytes[..].into(),
            },
            TensorElements::Texts(texts) => OwnedValue::List(
                texts.iter().map(|text| vec![OwnedValue::Text(text.as_str().into())]).collect(),
            ),
        }
    }
}

/// What a model takes, or gives, by one name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// As the model file calls it.
    pub name: String,
    /// The type of its elements; `None`: texts.
    pub dtype: Option<DType>,
    /// The shape of a row; `None` is a dimension that may have any length.
    pub row: Vec<Option<usize>>,
}

impl TensorInfo {
    pub(crate) fn of(column: &Column) -> Self {
        let spec = column.ty.required().tensor();
        let row = spec.map_or(Vec::new(), |spec| spec.row.iter().map(|dim| dim.fixed()).collect());
        Self { name: column.name.clone(), dtype: spec.map(|spec| spec.dtype), row }
    }
}

/// `pixels f32[batch, 1, 28, 28]`
impl fmt::Display for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}[batch", self.name, self.dtype.map_or("text", DType::name))?;
        for dim in &self.row {
            match dim {
                Some(dim) => write!(f, ", {dim}")?,
                None => f.write_str(", ?")?,
            }
        }
        f.write_str("]")
    }
}

/// Tensors by name, in an order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tensors(Vec<(String, Tensor)>);

impl Tensors {
    /// The tensor of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|(of, _)| of == name).map(|(_, tensor)| tensor)
    }

    /// All of them, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The tensor of this name.
///
/// # Panics
/// There is none. [`Tensors::get`] asks.
impl Index<&str> for Tensors {
    type Output = Tensor;

    fn index(&self, name: &str) -> &Tensor {
        self.get(name).unwrap_or_else(|| {
            let names: Vec<&str> = self.iter().map(|(name, _)| name).collect();
            panic!("there is no tensor `{name}`, only `{}`", names.join("`, `"))
        })
    }
}

impl<N: Into<String>> FromIterator<(N, Tensor)> for Tensors {
    fn from_iter<I: IntoIterator<Item = (N, Tensor)>>(tensors: I) -> Self {
        Self(tensors.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect())
    }
}

impl<const N: usize> From<[(&str, Tensor); N]> for Tensors {
    fn from(tensors: [(&str, Tensor); N]) -> Self {
        tensors.into_iter().collect()
    }
}

/// That of a model with one input, whatever its name.
impl From<Tensor> for Tensors {
    fn from(tensor: Tensor) -> Self {
        Self(vec![(String::new(), tensor)])
    }
}

impl IntoIterator for Tensors {
    type Item = (String, Tensor);
    type IntoIter = std::vec::IntoIter<(String, Tensor)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(feature = "ndarray")]
mod arrays {
    use super::{Tensor, TensorElement, TensorError};

    /// Row-major, copied only where the array is not.
    impl<T: TensorElement + Clone> From<ndarray::ArrayD<T>> for Tensor {
        fn from(array: ndarray::ArrayD<T>) -> Self {
            let shape = array.shape().to_vec();
            let (elements, first) = match array.is_standard_layout() {
                true => array.into_raw_vec_and_offset(),
                false => (array.iter().copied().collect(), None),
            };
            let n = shape.iter().product::<usize>();
            let first = first.unwrap_or_default();
            let elements = if elements.len() == n { elements } else { elements[first..first + n].to_vec() };
            Tensor::new(shape, elements).expect("an array has as many elements as its shape says")
        }
    }

    impl Tensor {
        /// Its elements, where they lie.
        ///
        /// # Errors
        /// As [`Tensor::as_slice`].
        pub fn view<T: TensorElement>(&self) -> Result<ndarray::ArrayViewD<'_, T>, TensorError> {
            let elements = self.as_slice::<T>()?;
            Ok(ndarray::ArrayViewD::from_shape(self.shape(), elements)
                .expect("a tensor has as many elements as its shape says"))
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn arrays_of_any_layout_become_tensors_and_back() {
            let array = ndarray::ArrayD::from_shape_fn(vec![2, 3], |at| (at[0] * 3 + at[1]) as f32);
            let transposed = array.clone().reversed_axes();
            let part = array.clone().slice_move(ndarray::s![1.., ..]).into_dyn();
            for array in [array, transposed, part] {
                let tensor = Tensor::from(array.clone());
                assert_eq!(tensor.view::<f32>().unwrap(), array);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_back_as_they_were_and_as_no_other_type() {
        let tensor = Tensor::new([2, 2], vec![1_i64, 2, 3, 4]).unwrap();
        assert_eq!(tensor.as_slice::<i64>().unwrap(), [1, 2, 3, 4]);
        let error = tensor.as_slice::<f32>().unwrap_err().to_string();
        assert_eq!(error, "the tensor is of type i64, not f32");
        assert!(
            tensor.as_texts().is_err() && Tensor::texts([1], vec!["a".into()]).unwrap().as_bytes().is_err()
        );
        assert_eq!(tensor.rows(1..2), bytemuck::cast_slice::<i64, u8>(&[3, 4]));
    }

    #[test]
    fn what_is_no_tensor_is_refused() {
        let error = Tensor::new([2, 3], vec![0_f32; 5]).unwrap_err().to_string();
        assert_eq!(error, "there are 5 elements, and shape [2, 3] has 6");
        assert!(Tensor::new([usize::MAX, 2], vec![0_u8; 2]).is_err());
        assert!(Tensor::from_bytes(DType::F32, [1], vec![0_u8; 3]).is_err());
        assert_eq!(Tensor::from_bytes(DType::Bool, [1], vec![2_u8]), Err(TensorError::NoBool));
    }

    #[test]
    fn elements_are_read_from_bytes_at_any_address() {
        let elements = [1.5_f64, -2.0];
        for shift in 0..8 {
            let shifted = Bytes::from([&[0; 8][..shift], bytemuck::cast_slice(&elements)].concat());
            let tensor = Tensor::from_bytes(DType::F64, [2], shifted.slice(shift..)).unwrap();
            assert_eq!(tensor.as_slice::<f64>().unwrap(), elements);
        }
        let none = Tensor::from_bytes(DType::F64, [0], Bytes::new()).unwrap();
        assert_eq!(none.as_slice::<f64>().unwrap(), [0.0; 0]);
    }

    #[test]
    fn rows_are_joined_at_an_address_that_fits_every_type() {
        let row = 1.5_f64.to_ne_bytes();
        let shifted = [&[0_u8][..], &row].concat();
        let tensor = Tensor::of_rows(DType::F64, 2, &[1], &[&shifted[1..], &row]);
        assert_eq!((tensor.shape(), tensor.as_slice::<f64>().unwrap()), (&[2, 1][..], &[1.5, 1.5][..]));
        let bytes = Tensor::of_rows(DType::U8, 3, &[3], &[b"abcdef", b"ghi"]);
        assert_eq!((bytes.shape(), bytes.as_slice::<u8>().unwrap()), (&[3, 3][..], &b"abcdefghi"[..]));
    }
}
