//! `kind = "tar"`: samples of tar archives (WebDataset), one item each.

mod sample;
mod sample_columns;

use std::io::{BufReader, Read, Seek};
use std::path::Path;
use std::slice;

use bincode::{Decode, Encode};
use orchestra_core::shapes::{FetchRun, KindSettings};
use orchestra_plan::{
    ItemSchema, Items, ObjectAccess, ReadOptions, Reported, SourceContext, Spanned, TypedSource, settings,
};
use orchestra_store::{Found, ListError, PassedOver, PassedOverCounts, PushFound};

use self::sample::{MISSING, TWICE, place_or};
use self::sample_columns::{MOST_COLUMNS, columns_of, is_npy, key_of, type_of};
use super::reading::archive::Member;
use super::reading::columns::item_schema;
use super::reading::field_type::Field;
use super::reading::file_version::FileVersion;
use super::reading::input::{answer, describe, look_into_first, open_to_list, warn_of_no_item, why_no_item};
use super::reading::locator::locator;
use super::reading::tar_members;
use crate::objects;

settings! {
    pub struct TarSource {
        /// the extensions whose members an item has, each a column of that name: pictures (`jpg`, `png`, `webp`, ...), `cls` (a number, i64),
        /// `txt`, `text`, `caption` and `json` (text), `npy` (a tensor of the first sample's shape); any other is bytes
        columns: Option<Vec<Spanned<String>>> => "those of the first sample",
    }
}

impl TypedSource for TarSource {
    const NAME: &'static str = "tar";
    const ABOUT: &'static str = "The samples of uncompressed tar archives, as WebDataset writes them: members that follow one another and share their path up to the first \
         dot of the file name. Links, hard and symbolic, have the bytes of the member that they lead to; archives that were put one behind the other are read on. An item is called `shard.tar/key`. `paths` may name [objects](../guide/workflow-file.md#objects), of which headers and \
         the members of `columns` are read: `s3://bucket/shards/*.tar`.";
    const NAMES_REPEAT: bool = true;
    const OBJECTS: Option<ObjectAccess> = Some(objects::ACCESS);
    type Items = Shards;

    fn connect(self, source: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, Shards), Reported> {
        let names = self.columns.map(|names| extensions(names, source)).transpose()?;
        let columns = match names {
            Some(names) if !names.iter().any(|name| is_npy(name)) => {
                names.into_iter().map(|name| Field::new(&*name, type_of(&name))).collect()
            }
            names => first_sample(source, names)?,
        };
        let (schema, shards) = (item_schema::<Self>(&columns), Shards { columns });
        warn_of_no_item::<Self>(source, &Question::NoItem(shards.clone()));
        Ok((schema, shards))
    }

    fn describe(question: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError> {
        match question.read() {
            Some(Question::FirstSample(names)) => describe(file, |archive| columns_of(archive, names)),
            Some(Question::NoItem(shards)) => answer(file, Ok(why_no_item(file, &shards))),
            None => answer::<()>(file, Err("it was asked for nothing".to_owned())),
        }
    }
}

/// Extensions as members have them, each named once.
fn extensions(
    names: Vec<Spanned<String>>,
    source: &mut SourceContext<'_, '_>,
) -> Result<Vec<String>, Reported> {
    let fields = &mut source.fields;
    let mut unique: Vec<String> = Vec::new();
    for name in names {
        let extension = name.value.trim_start_matches('.').to_ascii_lowercase();
        if extension.is_empty() || unique.contains(&extension) {
            return fields.bad("columns", name.span, "must name each extension once, such as \"jpg\"").fail();
        }
        unique.push(extension);
    }
    if unique.is_empty() || unique.len() > MOST_COLUMNS {
        let span = fields.entry("columns").map_or(fields.span, |entry| entry.node.span);
        return fields.bad("columns", span, &format!("must name 1 to {MOST_COLUMNS} extensions")).fail();
    }
    Ok(unique)
}

/// The columns as the first sample of the first file has them: all, or those that are named.
fn first_sample(
    source: &mut SourceContext<'_, '_>,
    names: Option<Vec<String>>,
) -> Result<Vec<Field>, Reported> {
    let help =
        "name the archives with `paths`, or with a manifest that is a file; or name `columns`, without `npy`";
    let question = Question::FirstSample(names);
    let (name, found) = look_into_first::<TarSource, _>(source, &question, None, help)?;
    found.or_else(|why| {
        source
            .error(format!("`{name}` cannot be read as a tar archive of samples: {why}"))
            .help("a sample is members such as `0001.jpg` and `0001.cls`, one behind the other")
            .fail()
    })
}

/// What is asked of an archive while its source is planned.
#[derive(Encode, Decode)]
enum Question {
    /// The columns of its first sample: all, or those that are named.
    FirstSample(Option<Vec<String>>),
    NoItem(Shards),
}

#[derive(Debug, Clone, Encode, Decode)]
pub struct Shards {
    columns: Vec<Field>,
}

impl Items for Shards {
    fn list(&self, path: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        open_to_list(path, |archive, seen| {
            let version = FileVersion::say(slice::from_ref(seen), push)?;
            self.samples(path, version, BufReader::with_capacity(16 << 10, archive), push)
        })
    }

    fn start(&self, options: &ReadOptions) -> Box<dyn FetchRun> {
        sample::start(&self.columns, options)
    }
}

impl Shards {
    /// Names the samples of an archive.
    fn samples(
        &self,
        path: &Path,
        version: FileVersion,
        archive: impl Read + Seek,
        push: PushFound<'_>,
    ) -> Result<(), ListError> {
        let unreadable = |why: String| ListError::bad_file(path, why);
        let mut members = tar_members::members(archive).map_err(|error| unreadable(error.to_string()))?;
        let mut sample: Option<ListedSample> = None;
        let (mut is_without, mut passed_over) = (true, PassedOverCounts::default());
        while let Some(member) = members.next().map_err(unreadable)? {
            let named = match member {
                Member::File { name, place } => {
                    key_of(&name).map(|key| (key, place)).ok_or(PassedOver::NoExtension)
                }
                Member::PassedOver(reason) => Err(reason),
            };
            let ((key, extension), place) = match named {
                Ok(named) => named,
                Err(reason) => {
                    passed_over.add(reason, 1);
                    push(Found::PassedOver(reason, 1))?;
                    continue;
                }
            };
            is_without = false;
            if let Some(before) = sample.take_if(|before| before.key != key) {
                before.push(path, version, push)?;
            }
            let sample = sample.get_or_insert_with(|| ListedSample {
                key,
                places: MISSING.repeat(self.columns.len()),
                others: 0,
            });
            match self.columns.iter().position(|column| column.name == extension) {
                Some(at) => {
                    let known = &mut sample.places[at * 2..][..2];
                    let found = if *known == MISSING { place_or(place) } else { TWICE };
                    known.copy_from_slice(&found);
                }
                None => sample.others += 1,
            }
        }
        match sample {
            Some(sample) => sample.push(path, version, push),
            None if is_without && passed_over.total() > 0 => Err(ListError::AllPassedOver {
                path: path.to_owned(),
                passed_over: Box::new(passed_over),
                help: "a sample is members called `key.extension`, such as `0001.jpg` and `0001.cls`"
                    .to_owned(),
            }),
            None => Ok(()),
        }
    }
}

/// A sample while its members are found.
struct ListedSample {
    key: String,
    places: Vec<u64>,
    others: u64,
}

impl ListedSample {
    fn push(self, path: &Path, version: FileVersion, push: PushFound<'_>) -> Result<(), ListError> {
        let numbers = [&self.places[..], &[version.0]].concat();
        push(Found::Item(&format!("/{}", self.key), &locator(path, &numbers)))?;
        // A sample without any of its columns fails by its name, and so do the members that it has.
        let is_read = self.places.as_chunks::<2>().0.iter().any(|place| *place != MISSING);
        match self.others {
            n if n > 0 && is_read => push(Found::PassedOver(PassedOver::NoColumn, n)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestra_core::data::Value;

    use super::*;
    use crate::sources::reading::tar_members::tests::archive;
    use crate::sources::reading::tests::listed;

    #[test]
    fn members_with_one_key_are_a_sample_and_a_bad_sample_fails_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar");
        let members: [(&str, &[u8]); 12] = [
            ("./d.x/1.cls", b" 7\n"),
            ("./d.x/1.seg.JSON", b"{}"),
            ("README", b"no sample"),
            (".hidden", b""),
            ("d.x/2.cls", b"8"),
            ("d.x/3.cls", b"x"),
            ("d.x/3.seg.json", b"{}"),
            ("4.cls", b"1"),
            ("4.cls", b"2"),
            ("4.seg.json", b""),
            ("5.seg.json", b"\xff"),
            ("5.cls", b"1"),
        ];
        std::fs::write(&path, archive(&members)).unwrap();
        let columns = ["cls", "seg.json"].map(|name| Field::new(name, type_of(name))).into();
        let shards = Shards { columns };
        let (items, passed_over) = listed(&shards, &path).unwrap();
        assert_eq!(passed_over.to_string(), "hidden 1, no_extension 1");
        let names: Vec<&str> = items.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["/d.x/1", "/d.x/2", "/d.x/3", "/4", "/5"]);
        let mut run = shards.start(&ReadOptions::default());
        let whys =
            ["no member `.seg.json`", "`.cls` is no whole number", "two members `.cls`", "is no UTF-8"];
        for ((_, locator), why) in items[1..].iter().zip(whys) {
            let error = run.fetch(locator).unwrap_err().error;
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(run.fetch(&items[0].1).unwrap(), 5);
        run.with_row(&mut |row| {
            let [Value::Tensor(cls), Value::Text(json)] = row else { panic!("other values") };
            assert_eq!((cls.data, *json), (&7_i64.to_ne_bytes()[..], "{}"));
        });
        std::fs::write(&path, archive(&members[..1])).unwrap();
        let error = run.fetch(&items[0].1).unwrap_err().error;
        assert!(error.contains("it was changed after it was listed"), "{error}");
    }
}
