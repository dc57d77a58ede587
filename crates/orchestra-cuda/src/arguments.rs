//! What a kernel is called with, as C++ and as values. The compiler itself checks that the kernel takes that. Texts only: it calls nothing.

use orchestra_core::kernel::Scalar;
use orchestra_core::{DType, Kernel, TensorSpec};

/// What messages of the compiler call the lines that are added behind the source.
const ADDED: &str = "arguments of the stage";

/// What the source gets behind its last line: it does not compile where the kernel takes anything but its arguments. Pointers are read or
/// written by the type of their elements, so another type would give other numbers, and no error.
pub fn check(kernel: &Kernel, inputs: &[TensorSpec], outputs: &[TensorSpec]) -> String {
    let pointer = |is_const: bool| {
        move |tensor: &TensorSpec| {
            let begin = if is_const { "const " } else { "" };
            (format!("{begin}{} *", c_type(tensor.dtype)), tensor.name.clone())
        }
    };
    let inputs = inputs.iter().map(pointer(true));
    let outputs = outputs.iter().map(pointer(false));
    let rows = [("long long ".to_owned(), "rows".to_owned())];
    let scalar = |scalar: &Scalar| (format!("{} ", c_type(scalar.dtype)), scalar.name.clone());
    let scalars = kernel.scalars.iter().map(scalar);
    let all: Vec<(String, String)> = inputs.chain(outputs).chain(rows).chain(scalars).collect();
    let types: Vec<&str> = all.iter().map(|(ty, _)| ty.trim_end()).collect();
    let named: Vec<String> = all.iter().map(|(ty, name)| format!("{ty}{name}")).collect();
    let (function, types, named) = (&kernel.function, types.join(", "), named.join(", "));
    format!(
        "\n#line 1 \"{ADDED}\"\n\
         template <class A, class B> struct orchestra_same {{ static const bool is = false; }};\n\
         template <class A> struct orchestra_same<A, A> {{ static const bool is = true; }};\n\
         static_assert(orchestra_same<decltype(&{function}), void (*)({types})>::is,\n\
         \"the kernel must be: __global__ void {function}({named})\");\n"
    )
}

/// For the compiler: how many elements a row of each tensor has, as `ROW_name`.
pub fn definitions(inputs: &[TensorSpec], outputs: &[TensorSpec]) -> Vec<String> {
    let define = |tensor: &TensorSpec| Some(format!("-DROW_{}={}LL", tensor.name, tensor.row_len()?));
    inputs.iter().chain(outputs).filter_map(define).collect()
}

/// All that is passed: each value begins with the bytes of its type.
pub fn values(inputs: &[u64], outputs: &[u64], rows: usize, scalars: &[Scalar]) -> Vec<u64> {
    let scalar = |scalar: &Scalar| {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(&scalar.bytes).for_each(|(to, from)| *to = *from);
        u64::from_ne_bytes(bytes)
    };
    [inputs, outputs, &[rows as u64]].concat().into_iter().chain(scalars.iter().map(scalar)).collect()
}

fn c_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F16 => "__half",
        DType::I64 => "long long",
        DType::I32 => "int",
        DType::F64 => "double",
        DType::I16 => "short",
        DType::U8 => "unsigned char",
        DType::Bool => "bool",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use orchestra_core::Dim;
    use orchestra_core::kernel::{Compiler, Grid};

    use super::*;

    fn tensor(name: &str, dtype: DType, row: &[usize]) -> TensorSpec {
        let row = row.iter().map(|n| Dim::Fixed(*n)).collect();
        TensorSpec { name: name.into(), dtype, row, batch: Dim::Dynamic }
    }

    /// One without arguments, and a compiler for it.
    pub fn a_kernel() -> Kernel {
        Kernel {
            file: "k.cu".into(),
            source: String::new(),
            headers: Vec::new(),
            function: "k".into(),
            scalars: Vec::new(),
            block: 256,
            grid: Grid::Rows,
            options: Vec::new(),
            compilers: Ok(vec![Compiler { release: 13, path: "/13".into() }]),
        }
    }

    #[test]
    fn a_kernel_must_take_what_it_is_given_in_this_order() {
        let scalar = Scalar { name: "by".into(), dtype: DType::F32, bytes: 0.5_f32.to_ne_bytes().to_vec() };
        let kernel = Kernel { function: "scale<float>".into(), scalars: vec![scalar.clone()], ..a_kernel() };
        let (inputs, outputs) = (
            [tensor("x", DType::F32, &[2, 3]), tensor("n", DType::I64, &[])],
            [tensor("y", DType::U8, &[4])],
        );
        let text = check(&kernel, &inputs, &outputs);
        assert!(
            text.contains("(*)(const float *, const long long *, unsigned char *, long long, float)"),
            "{text}"
        );
        let said =
            "scale<float>(const float *x, const long long *n, unsigned char *y, long long rows, float by)";
        assert!(text.contains(said), "{text}");
        assert_eq!(definitions(&inputs, &outputs), ["-DROW_x=6LL", "-DROW_n=1LL", "-DROW_y=4LL"]);
        let values = values(&[10, 20], &[30], 7, &[scalar]);
        assert_eq!(values[..4], [10, 20, 30, 7]);
        assert_eq!(values[4].to_ne_bytes()[..4], 0.5_f32.to_ne_bytes());
    }
}
