//! Model files made by hand, and what is read from them.

use std::fs;

use super::*;

/// A field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    prost::encoding::encode_key(u32::from(number), prost::encoding::WireType::LengthDelimited, &mut out);
    prost::encoding::encode_varint(bytes.len() as u64, &mut out);
    out.extend_from_slice(bytes);
    out
}

/// A value of a graph; dimensions below 1 are open, `i64::MIN` is a named one. `None`: no shape.
fn value(name: &str, element: i32, dims: Option<&[i64]>) -> Vec<u8> {
    let dim = |n: &i64| match *n {
        i64::MIN => DimensionProto::named("batch"),
        n => DimensionProto { dim_value: Some(n), dim_param: None },
    };
    ValueInfoProto::tensor(name, element, dims.map(|dims| dims.iter().map(dim).collect())).encode_to_vec()
}

fn tensor(name: &str, location: Option<&str>, raw: usize) -> Vec<u8> {
    let external = location.map_or_else(Vec::new, |l| {
        let entry = |key: &str, value: &str| {
            field(13, &StringStringEntryProto { key: key.into(), value: value.into() }.encode_to_vec())
        };
        [entry("location", l), entry("offset", "0")].concat()
    });
    [field(8, name.as_bytes()), field(9, &vec![7; raw]), external].concat()
}

fn model(graph: &[Vec<u8>]) -> Vec<u8> {
    let opset = OperatorSetIdProto { domain: String::new(), version: 20 }.encode_to_vec();
    [vec![0x08, 10], field(7, &graph.concat()), field(8, &opset)].concat()
}

const OPEN: i64 = i64::MIN;

/// An image model with a weight that is listed as an input, as old exporters do.
fn image_model() -> Vec<u8> {
    model(&[
        field(1, &field(5, &field(5, &tensor("", None, 3)))),
        field(5, &tensor("weight", None, 100_000)),
        field(11, &value("image", 1, Some(&[OPEN, 3, 224, -1]))),
        field(11, &value("weight", 1, Some(&[3, 3]))),
        field(12, &value("logits", 10, Some(&[OPEN, 1000]))),
    ])
}

fn read(bytes: &[u8]) -> Result<ModelFile, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    fs::write(&path, bytes).unwrap();
    read_model(&path).map_err(|e| e.to_string())
}

#[test]
fn inputs_and_outputs_are_read_and_weights_are_no_inputs() {
    let bytes = image_model();
    let file = read(&bytes).unwrap();
    let show = |t: &[TensorSpec]| t.iter().map(|t| format!("{} {t}", t.name)).collect::<Vec<_>>();
    assert_eq!(show(&file.signature.inputs), ["image f32[batch, 3, 224, ?]"]);
    assert_eq!(show(&file.signature.output_tensors()), ["logits f16[batch, 1000]"]);
    assert_eq!((file.signature.ir_version, file.signature.opset), (10, 20));
    assert_eq!(file.digest, <[u8; 32]>::from(Sha256::digest(&bytes)));
}

#[test]
fn weights_pass_by_and_are_not_kept() {
    let bytes = image_model();
    let model = OnnxModel::read(&mut stream(&bytes)).unwrap();
    assert!(model.graph.initializers.contains("weight"));
    assert!(model.graph.taken < 4096, "{} bytes", model.graph.taken);
}

#[test]
fn metadata_is_read_and_what_is_none_or_too_much_is_left_out() {
    let entry = |key: &str, value: String| {
        field(14, &StringStringEntryProto { key: key.into(), value }.encode_to_vec())
    };
    let large = "x".repeat(MAX_METADATA);
    let rubbish = [field(14, &[0xff; 9]), field(14, &field(1, &[0xff, 0xfe]))].concat();
    let more =
        [entry("a", "1\n2".into()), rubbish, entry("large", large), entry("b", String::new())].concat();
    let file = read(&[image_model(), more].concat()).unwrap();
    let found: Vec<_> = file.signature.metadata.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!(found, [("a", "1\n2"), ("b", "")]);
}

/// Numbers are fixed dimensions, `?` is one without a name, anything else is a name.
#[test]
fn items_lie_along_the_first_axis_unless_inputs_share_another_that_can_only_be_theirs() {
    for (inputs, expected) in [
        (&["? 3 height width"][..], &[0][..]),
        (&["n 3 height width"], &[0]),
        (&["2 n"], &[0]),
        (&["batch ids", "batch_size ids"], &[0, 0]),
        (&["? ids", "? ids"], &[0, 0]),
        (&["batch ids", "batch ids"], &[0, 0]),
        (&["batch frames", "2 batch 128"], &[0, 1]),
        (&["? 576", "2 ? 128"], &[0, 1]),
        (&["steps batch 40", "2 batch 128"], &[1, 1]),
        (&["steps batch 40", "batch"], &[1, 0]),
    ] {
        let infos: Vec<ValueInfoProto> = inputs
            .iter()
            .map(|dims| {
                let dim = |dim: &str| match dim.parse() {
                    Ok(n) => DimensionProto { dim_value: Some(n), dim_param: None },
                    Err(_) if dim == "?" => DimensionProto { dim_value: None, dim_param: None },
                    Err(_) => DimensionProto::named(dim),
                };
                ValueInfoProto::tensor("x", 1, Some(dims.split(' ').map(dim).collect()))
            })
            .collect();
        let infos: Vec<&ValueInfoProto> = infos.iter().collect();
        assert_eq!(batch_axes::batch_axes(&infos.iter().collect::<Vec<_>>()), expected, "{inputs:?}");
    }
}

#[test]
fn a_fixed_batch_is_seen() {
    let file =
        read(&model(&[field(11, &value("x", 7, Some(&[4, 2]))), field(12, &value("y", 6, None))])).unwrap();
    assert_eq!(file.signature.inputs[0].to_string(), "i64[4, 2]");
    assert_eq!(file.signature.outputs[0].to_string(), "i32");
    assert_eq!(file.signature.output_tensors()[0].to_string(), "i32[4, ?]");
}

#[test]
fn what_cannot_be_fed_is_named() {
    let good = value("y", 1, Some(&[OPEN]));
    let with_input = |input: Vec<u8>| read(&model(&[field(11, &input), field(12, &good)])).unwrap_err();
    assert_eq!(
        with_input(value("x", 3, Some(&[OPEN]))),
        "its input `x` is of type int8; tensors of f32, f16, i64, i32, u8, bool, f64, i16 and text are supported: export the model with an input of one \
         of these, and a `Cast` behind it"
    );
    let many = with_input(value("x", 8, Some(&[OPEN, 5000])));
    assert!(many.contains("its input `x` is text[batch, 5000]; at most 4096 texts"), "{many}");
    assert!(with_input(value("x", 1, None)).contains("input `x` has no shape"));
    let single = with_input(value("x", 1, Some(&[])));
    assert_eq!(single, "the model has no input but single values, and so no items");
    let no_tensor = ValueInfoProto { name: "x".into(), kind: None }.encode_to_vec();
    assert!(with_input(no_tensor).contains("sequence, map or optional"));
    assert_eq!(read(&model(&[field(12, &good)])).unwrap_err(), "the model has no input");
}

#[test]
fn outputs_are_read_whatever_they_hold() {
    let of = |kind: TypeProto| {
        let output = ValueInfoProto { name: "y".into(), kind: Some(kind) }.encode_to_vec();
        let good = value("x", 1, Some(&[OPEN, 2]));
        read(&model(&[field(11, &good), field(12, &output)])).unwrap().signature.outputs[0].to_string()
    };
    let tensor = |element, dims: &[i64]| {
        ValueInfoProto::decode(&*value("y", element, Some(dims))).unwrap().kind.unwrap()
    };
    let other = || Some(());
    assert_eq!(of(tensor(11, &[OPEN, 3])), "f64[batch, 3]");
    assert_eq!(of(tensor(3, &[2, OPEN])), "int8[2, batch]");
    assert_eq!(of(tensor(8, &[OPEN, -1])), "text[batch, ?]");
    assert_eq!(of(tensor(1, &[])), "f32[]");
    assert_eq!(of(TypeProto { sequence_type: other(), ..TypeProto::default() }), "sequence");
    assert_eq!(of(TypeProto { map_type: other(), ..TypeProto::default() }), "map");
    assert_eq!(of(TypeProto { optional_type: other(), ..TypeProto::default() }), "optional");
    assert_eq!(of(TypeProto { sparse_tensor_type: other(), ..TypeProto::default() }), "sparse tensor");
    assert_eq!(of(TypeProto::default()), "unknown");
    let passed = read(&model(&[
        field(11, &value("x", 1, Some(&[OPEN, 2]))),
        field(12, &value("x", 1, Some(&[OPEN, 2]))),
        field(12, &value("y", 1, Some(&[OPEN, 2]))),
    ]));
    let is_input: Vec<bool> =
        passed.unwrap().signature.outputs.iter().map(|output| output.is_input).collect();
    assert_eq!(is_input, [true, false]);
}

#[test]
fn other_files_are_recognised() {
    for (bytes, reason) in [
        (&b""[..], "it is empty"),
        (b"\xff\xd8\xff\xe0 a picture", "the file is no ONNX model"),
        (b"\x89PNG\r\n\x1a\n", "the file is no ONNX model"),
        (b"some text\n", "the file is no ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ] {
        let error = read(bytes).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    let missing = read_model(Path::new("/nowhere/m.onnx")).unwrap_err();
    assert!(matches!(missing, ModelError::Missing));
}

#[test]
fn every_truncation_is_an_error_that_says_so() {
    let bytes = model(&[
        field(5, &tensor("w", None, 40)),
        field(11, &value("x", 1, Some(&[OPEN]))),
        field(12, &value("y", 1, Some(&[OPEN]))),
    ]);
    let whole = bytes.len()
        - field(8, &OperatorSetIdProto { domain: String::new(), version: 20 }.encode_to_vec()).len();
    for len in 3..bytes.len() {
        if len != whole {
            let error = read(&bytes[..len]).unwrap_err();
            assert!(error.contains("cut short"), "{len} bytes: {error}");
        }
    }
}

#[test]
fn external_weights_are_part_of_the_digest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let with = |location: &str| {
        let in_branch = field(1, &field(5, &field(6, &field(5, &tensor("b", Some("more.bin"), 0)))));
        model(&[
            in_branch,
            field(5, &tensor("w", Some(location), 0)),
            field(11, &value("x", 1, Some(&[OPEN]))),
            field(12, &value("y", 1, Some(&[OPEN]))),
        ])
    };
    fs::write(&path, with("weights.bin")).unwrap();
    let error = read_model(&path).unwrap_err().to_string();
    assert!(error.starts_with("its weights `more.bin` cannot be read"), "{error}");
    fs::write(folder.path().join("more.bin"), b"m").unwrap();
    fs::write(folder.path().join("weights.bin"), b"one").unwrap();
    let one = read_model(&path).unwrap().digest;
    fs::write(folder.path().join("weights.bin"), b"two").unwrap();
    let two = read_model(&path).unwrap();
    assert_ne!(two.digest, one);
    let digest = |bytes: &[u8]| -> [u8; 32] { Sha256::digest(bytes).into() };
    let files = [("more.bin", digest(b"m")), ("weights.bin", digest(b"two"))];
    assert_eq!(two.weights, files.map(|(name, digest)| (name.to_owned(), digest)));
    fs::write(&path, with("../weights.bin")).unwrap();
    let error = read_model(&path).unwrap_err().to_string();
    assert!(error.contains("outside the folder of the model"), "{error}");
}

/// What a file holds, as it is read.
fn stream(bytes: &[u8]) -> HashedStream {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    HashedStream::new(file, bytes.len() as u64)
}

#[test]
fn entries_without_end_are_refused_or_pass_by() {
    const N: usize = 10_000;
    let (x, y) = (value("x", 1, Some(&[OPEN])), value("y", 1, Some(&[OPEN])));
    let with = |more: Vec<u8>| read(&model(&[field(11, &x), field(12, &y), more])).map(|_| ());
    let refused = "the names and shapes in its graph take more than 256 MiB";
    assert_eq!(with(field(1, b"").repeat(4 << 20)).unwrap_err(), refused);
    let taken = |bytes: &[u8]| {
        let mut graph = Graph::default();
        graph.read(&mut stream(bytes), bytes.len(), 0).unwrap();
        graph.taken
    };
    let empty = |number: u8| field(number, b"").repeat(N);
    let dims = field(2, &field(1, &field(2, &empty(1))));
    let held = [
        [
            empty(1),
            empty(11),
            empty(12),
            field(11, &dims),
            field(12, &dims),
            field(15, &field(1, &empty(13))),
        ],
        [(1, 2), (1, 4), (1, 7), (5, 8), (5, 13), (5, 13)].map(|(outer, inner)| field(outer, &empty(inner))),
    ];
    for graph in held.as_flattened() {
        assert!(taken(graph) >= N * 64, "{} bytes for {:?}", taken(graph), &graph[..8]);
    }
    let in_branch = field(1, &field(5, &field(6, &empty(12))));
    let inner = [(1, 1), (1, 5), (5, 1)].map(|(outer, inner)| field(outer, &empty(inner)));
    for graph in [in_branch, empty(5), empty(15)].iter().chain(&inner) {
        assert!(taken(graph) < 4096, "{} bytes for {:?}", taken(graph), &graph[..8]);
    }
    let outputs = |n: usize| with(field(12, &y).repeat(n - 1));
    assert_eq!(outputs(4096), Ok(()));
    assert_eq!(outputs(4097).unwrap_err(), "it has 4097 outputs; at most 4096 are supported");
    let nested = |n: usize| (0..n).fold(Vec::new(), |inner, _| field(1, &field(5, &field(6, &inner))));
    assert_eq!(with(nested(32)), Ok(()));
    assert!(with(nested(33)).unwrap_err().contains("more than 32 deep"));
    let _either = with(nested(3000));
}

#[test]
fn weights_are_read_once_and_no_further_than_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let model_in = |folder: &Path, locations: &[&str]| {
        let weights: Vec<u8> =
            locations.iter().flat_map(|location| field(5, &tensor("w", Some(location), 0))).collect();
        let (x, y) = (value("x", 1, Some(&[OPEN])), value("y", 1, Some(&[OPEN])));
        let path = folder.join("m.onnx");
        fs::write(&path, model(&[weights, field(11, &x), field(12, &y)])).unwrap();
        read_model(&path)
    };
    let hole = fs::File::create(folder.path().join("hole")).unwrap();
    hole.set_len(1 << 40).unwrap();
    let error = model_in(folder.path(), &["hole"]).unwrap_err().to_string();
    assert_eq!(error, "its weights `hole` cannot be read: nearly all of its 1 TiB are a hole");
    std::os::unix::fs::symlink("/proc/self/maps", folder.path().join("endless")).unwrap();
    let error = model_in(folder.path(), &["endless"]).unwrap_err().to_string();
    assert!(error.ends_with("it has more bytes than its size, which is 0"), "{error}");
    // A cache holds files by their digests, and links to them from a folder for each model.
    let (blobs, snapshot) = (folder.path().join("blobs"), folder.path().join("snapshot"));
    fs::create_dir(&blobs).unwrap();
    fs::create_dir(&snapshot).unwrap();
    fs::write(blobs.join("abc"), b"weights").unwrap();
    std::os::unix::fs::symlink("../blobs/abc", snapshot.join("w.bin")).unwrap();
    let read = model_in(&snapshot, &["w.bin", "./w.bin"]).unwrap();
    let digest: [u8; 32] = Sha256::digest(b"weights").into();
    assert!(read.weights.len() == 2 && read.weights.iter().all(|(_, found)| *found == digest));
}

#[test]
fn a_tensor_of_more_dimensions_than_records_can_nest_is_refused() {
    let with = |n: usize| {
        let dims: Vec<i64> = std::iter::once(OPEN).chain(std::iter::repeat_n(1, n - 1)).collect();
        let image = value("image", 1, Some(&[OPEN, 3, 8, 8]));
        model(&[field(11, &image), field(12, &value("deep", 1, Some(&dims)))])
    };
    assert!(read(&with(64)).is_ok());
    let error = read(&with(65)).unwrap_err();
    assert_eq!(error, "its output `deep` has 65 dimensions; at most 64 are supported");
}
