use orchestra_core::DType;

use std::path::Path;

use orchestra_core::data::Value;
use orchestra_core::shapes::FetchRun;
use orchestra_plan::{Items as _, ReadOptions};

use super::rows::TensorItems;
use crate::sources::reading::field_type::{Field, FieldType};
use crate::sources::reading::locator::locator;
use crate::sources::reading::npy_header::Header;
use crate::sources::reading::tests::listed;
use crate::sources::reading::zip_members::tests::archive;

/// A file as numpy.save writes it.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    [b"\x93NUMPY\x01\x00\x76\x00", format!("{header:<117}\n").as_bytes(), data].concat()
}

fn rows(shape: &[usize]) -> TensorItems {
    let ty = FieldType::Tensor { dtype: DType::F32, shape: shape.into() };
    TensorItems {
        is_npz: false,
        fields: vec![Field::new("x", ty)],
        beside: Vec::new(),
        chunk: None,
        max_items: 1000,
    }
}

#[test]
fn no_header_is_believed_that_is_cut_short_or_claims_too_much() {
    let whole = npy("<f4", "(3, 2)", &[0; 24]);
    assert_eq!(Header::parse(&whole).unwrap().shape, [3, 2]);
    for len in 0..whole.len() - 24 {
        assert!(Header::parse(&whole[..len]).is_err(), "{len} bytes");
    }
    for (descr, shape) in [
        ("<f16", "(3, 2)"),
        ("<u8", "(3, 2)"),
        ("<f4", "()"),
        ("<f4", "(9999999999, 9999999999)"),
        ("<f4", "(-1,)"),
        ("<f4", "(99, 0)"),
    ] {
        assert!(Header::parse(&npy(descr, shape, &[])).is_err(), "{descr} {shape}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short.npy");
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let error = rows(&[2]).list(&path, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("cut short"), "{error}");
    let error = rows(&[4]).list(&path, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("the first file of the source"), "{error}");
}

fn items(rows: &TensorItems, path: &Path) -> Vec<(String, Vec<u8>)> {
    let (items, _) = listed(rows, path).unwrap();
    items
}

fn floats(run: &dyn FetchRun) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    run.with_row(&mut |row| {
        for value in row {
            let Value::Tensor(view) = value else { panic!("not a tensor") };
            all.push(view.data.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect());
        }
    });
    all
}

#[test]
fn bytes_behind_an_array_are_refused_whatever_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let one = npy("<f4", "(2,)", &[0; 8]);
    for behind in [&[0][..], &[7; 8], &one] {
        std::fs::write(&path, [&one[..], behind].concat()).unwrap();
        let error = rows(&[]).list(&path, &mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains(&format!("{} bytes behind the array", behind.len())), "{error}");
        let item_error =
            rows(&[]).start(&ReadOptions::default()).fetch(&locator(&path, &[0, 0])).unwrap_err();
        assert!(item_error.error.contains("behind the array"), "{}", item_error.error);
    }
    let (path, longer) = (folder.path().join("a.npz"), [&one[..], b"x"].concat());
    for method in [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated] {
        std::fs::write(&path, archive(&[("x.npy", &longer)], method, false)).unwrap();
        let source = TensorItems { is_npz: true, ..rows(&[]) };
        let error = source.list(&path, &mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("1 bytes behind the array"), "{error}");
        let members: [(&str, &[u8]); 3] = [("x.npy", &one), ("__MACOSX/._x.npy", b"m"), ("d/", b"")];
        std::fs::write(&path, archive(&members, method, false)).unwrap();
        let (items, passed_over) = listed(&source, &path).unwrap();
        assert_eq!((items.len(), passed_over.to_string()), (2, "hidden 1, folder 1".to_owned()));
    }
}

#[test]
fn files_beside_each_other_are_read_row_by_row_and_must_be_of_one_length() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("a/1.npy"), folder.path().join("b/1.npy"));
    let data: Vec<u8> = (0..12).flat_map(|n| (n as f32).to_le_bytes()).collect();
    for (path, shape, data) in [(&path, "(6, 2)", &data[..]), (&other, "(6,)", &data[..24])] {
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        std::fs::write(path, npy("<f4", shape, data)).unwrap();
    }
    let other_field = Field { name: "y".into(), ..rows(&[]).fields.remove(0) };
    let pair = TensorItems {
        fields: vec![rows(&[2]).fields.remove(0), other_field],
        beside: vec!["../b/*".into()],
        ..rows(&[2])
    };
    let items = items(&pair, &path);
    assert_eq!(items.len(), 6);
    let mut run = pair.start(&ReadOptions::default());
    for at in [5_usize, 0, 3] {
        run.fetch(&items[at].1).unwrap();
        assert_eq!(floats(&*run), [vec![at as f32 * 2.0, at as f32 * 2.0 + 1.0], vec![at as f32]]);
    }
    let refused = |bytes: &[u8]| {
        std::fs::write(&other, bytes).unwrap();
        pair.list(&path, &mut |_| Ok(())).unwrap_err().to_string()
    };
    let error = refused(&npy("<f4", "(5,)", &data[..20]));
    assert!(error.contains("`x` has 6 rows, and `y` 5"), "{error}");
    let error = refused(&npy("<f4", "(6,)", &data[..24])[..90]);
    assert!(error.contains("b/1.npy` beside it: "), "{error}");
    std::fs::remove_file(&other).unwrap();
    let error = pair.list(&path, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("b/1.npy` beside it: "), "{error}");
}

#[test]
fn arrays_of_an_archive_are_read_in_any_order_whether_stored_or_deflated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let data: Vec<u8> = (0..400).flat_map(|n| (n as f32).to_le_bytes()).collect();
    let (a, b) = (npy("<f4", "(100, 4)", &data), npy("<f4", "(100,)", &data[..400]));
    let names = npy("<f4", "()", &data[..4]);
    let members: [(&str, &[u8]); 3] = [("a.npy", &a), ("names.npy", &names), ("b.npy", &b)];
    let tensor = |name: &str, shape: &[usize]| Field { name: name.into(), ..rows(shape).fields.remove(0) };
    let fields = vec![tensor("b", &[]), tensor("a", &[4])];
    let source = TensorItems { is_npz: true, fields, beside: Vec::new(), chunk: None, max_items: 1000 };
    for method in [::zip::CompressionMethod::Stored, ::zip::CompressionMethod::Deflated] {
        let bytes = archive(&members, method, true);
        std::fs::write(&path, &bytes).unwrap();
        let items = items(&source, &path);
        assert_eq!(items.len(), 100);
        let mut run = source.start(&ReadOptions::default());
        for at in [3_usize, 4, 99, 0, 50] {
            run.fetch(&items[at].1).unwrap();
            let row = (at * 4..at * 4 + 4).map(|n| n as f32).collect();
            assert_eq!(floats(&*run), [vec![at as f32], row]);
        }
        std::fs::write(&path, &bytes[..bytes.len() - 30]).unwrap();
        let error = source.list(&path, &mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("cut short"), "{error}");
        // A bit of a row, of which nothing but the checksum tells.
        let mut flipped = bytes;
        flipped[400] ^= 1;
        std::fs::write(&path, &flipped).unwrap();
        let error = source.list(&path, &mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("its array `a` is damaged"), "{error}");
        std::fs::write(&path, archive(&[("a.npy", &a), ("a", &b)], method, false)).unwrap();
        let error = source.list(&path, &mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("it holds the array `a` twice"), "{error}");
    }
    let error = TensorItems { fields: vec![tensor("names", &[])], ..source.clone() };
    std::fs::write(&path, archive(&members, ::zip::CompressionMethod::Stored, false)).unwrap();
    let error = error.list(&path, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("array `names`: its shape is []"), "{error}");
}
