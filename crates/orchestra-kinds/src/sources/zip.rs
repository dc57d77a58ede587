//! `kind = "zip"`: pictures that are members of zip archives, one item each.

use std::ffi::OsStr;
use std::io::BufReader;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;

use bincode::{Decode, Encode};
use orchestra_core::FailureKind;
use orchestra_core::data::{ColumnType, ItemError, Schema};
use orchestra_core::shapes::{FetchRun, KindSettings};
use orchestra_plan::{
    ItemSchema, Items, ObjectAccess, ReadOptions, Reported, SourceContext, Spanned, TypedSource, settings,
};
use orchestra_store::{Found, ListError, PassedOver, PassedOverCounts, PushFound, escape, is_hidden};

use super::reading::archive::Member;
use super::reading::fetch::fetch_into;
use super::reading::file_version::FileVersion;
use super::reading::input::{Last, Opener, answer, open_to_list, warn_of_no_item, why_no_item};
use super::reading::limits::LARGEST_FILE_BYTES;
use super::reading::locator::{locator, parts};
use super::reading::undecoded_picture::UndecodedPicture;
use super::reading::zip_members::{self, ZipPlace, read_member};
use crate::objects;

settings! {
    pub struct Zip {
        /// globs of the members that are items, such as `*.png` or `train/**/*.jpg`, for the whole name; without it, those that end in `.jpg`, `.jpeg`, `.png`, `.webp`, `.bmp`,
        /// `.tif`, `.tiff` or `.gif`
        members: Option<Vec<Spanned<String>>> => "pictures by their extension",
    }
}

const EXTENSIONS: [&str; 8] = ["jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif"];

impl TypedSource for Zip {
    const NAME: &'static str = "zip";
    const ABOUT: &'static str = "Pictures that are members of zip archives, stored or deflated. A symbolic link has the bytes of the member that it leads to. An item is called `archive.zip/member`. Other members are [passed over](../guide/workflow-file.md#what-is-passed-over) and counted.";
    const NAMES_REPEAT: bool = true;
    const OBJECTS: Option<ObjectAccess> = Some(objects::ACCESS);
    type Items = Pictures;

    fn connect(self, source: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, Pictures), Reported> {
        let fields = &mut source.fields;
        if let (Some([]), Some(entry)) = (self.members.as_deref(), fields.entry("members")) {
            let help = "for example members = \"*.png\"";
            return fields.bad("members", entry.node.span, "names nothing").help(help).fail();
        }
        let mut globs = Vec::new();
        for glob in self.members.into_iter().flatten() {
            if let Err(error) = fast_glob::validate(&glob.value) {
                return fields.bad("members", glob.span, &format!("is no glob: {error}")).fail();
            }
            globs.push(glob.value);
        }
        let schema = ItemSchema {
            gives: Schema::of("picture", ColumnType::Picture),
            settings: serde_json::json!({ "kind": Self::NAME, "members": globs }),
            decoders: Some(orchestra_media::DECODERS),
        };
        let pictures = Pictures { globs };
        warn_of_no_item::<Self>(source, &pictures);
        Ok((schema, pictures))
    }

    fn describe(question: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError> {
        answer(file, Ok(question.read::<Pictures>().and_then(|pictures| why_no_item(file, &pictures))))
    }
}

#[derive(Debug, Encode, Decode)]
pub struct Pictures {
    /// Of members; none: those that are called as pictures are.
    globs: Vec<String>,
}

impl Pictures {
    /// Some glob names what is hidden, as globs of files may.
    fn takes_hidden(&self) -> bool {
        self.globs.iter().any(|glob| is_hidden(glob.as_bytes()))
    }

    fn takes(&self, name: &[u8]) -> bool {
        if self.globs.is_empty() {
            let extension = Path::new(OsStr::from_bytes(name)).extension().unwrap_or_default();
            return EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known));
        }
        self.globs.iter().any(|glob| fast_glob::glob_match(glob, name))
    }
}

impl Items for Pictures {
    fn list(&self, path: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        let unreadable = |why: String| ListError::bad_file(path, why);
        let (mut n_items, mut passed_over) = (0_u64, PassedOverCounts::default());
        open_to_list(path, |file, seen| {
            FileVersion::say(slice::from_ref(seen), push)?;
            let members = zip_members::members(BufReader::new(file)).map_err(unreadable)?;
            let mut members = members.with_hidden(self.takes_hidden());
            while let Some(member) = members.next().map_err(unreadable)? {
                let found = match member {
                    Member::File { name, place } if self.takes(&name) => Ok((name, place)),
                    Member::File { .. } => Err(PassedOver::NotTaken),
                    Member::PassedOver(reason) => Err(reason),
                };
                let (name, place) = match found {
                    Ok(found) => found,
                    Err(reason) => {
                        passed_over.add(reason, 1);
                        push(Found::PassedOver(reason, 1))?;
                        continue;
                    }
                };
                n_items += 1;
                let name = escape(Path::new(OsStr::from_bytes(&name)));
                let place = place.unwrap_or_else(ZipPlace::astray);
                push(Found::Item(&format!("/{name}"), &locator(path, &place.numbers())))?;
            }
            Ok(())
        })?;
        if n_items == 0 && passed_over.total() > 0 {
            let help = "say which members are items with `members`, such as `members = \"*.png\"`".to_owned();
            return Err(ListError::AllPassedOver {
                path: path.to_owned(),
                passed_over: passed_over.into(),
                help,
            });
        }
        Ok(())
    }

    fn start(&self, options: &ReadOptions) -> Box<dyn FetchRun> {
        let (opener, mut open) = (Opener::new(options), Last::default());
        fetch_into(UndecodedPicture::new(options.max_pixels), move |picture, locator| {
            let (path, numbers) = parts(locator, 5)?;
            let place = numbers.first_chunk().and_then(|numbers| ZipPlace::of_numbers(*numbers));
            let place =
                place.ok_or_else(|| ItemError::result("the list of items names no member; this is a bug"))?;
            if place.len > LARGEST_FILE_BYTES {
                let error = format!("it has {} bytes, more than a picture file can have (1 GiB)", place.len);
                return Err(ItemError { kind: FailureKind::TooLarge, error });
            }
            let failed = |error: String| ItemError {
                kind: FailureKind::Read,
                error: format!("cannot read it from `{}`: {error}", path.display()),
            };
            let input = open.get(path, || opener.open(path))?;
            let bytes = picture.bytes_mut();
            read_member(input, &place, bytes).map_err(|error| input.item_error(failed(error)))?;
            Ok(bytes.len() as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::reading::tests::listed;
    use crate::sources::reading::zip_members::tests::archive;

    #[test]
    fn members_are_taken_by_their_names_and_a_damaged_one_fails_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.zip");
        let members: [(&str, &[u8]); 4] =
            [("a.PNG", b"first"), ("d/b.jpg", b"second"), ("note.txt", b"n"), ("d/", b"")];
        let mut bytes = archive(&members, zip::CompressionMethod::Stored, false);
        let at = bytes.windows(5).position(|at| at == b"first").unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let items = |globs: &[&str]| {
            let globs = globs.iter().map(|glob| (*glob).to_owned()).collect();
            listed(&Pictures { globs }, &path).unwrap().0
        };
        let names = |globs: &[&str]| items(globs).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&[]), ["/a.PNG", "/d/b.jpg"]);
        assert_eq!(names(&["d/*"]), ["/d/b.jpg"]);
        assert_eq!(names(&["*.txt", "**/*.jpg"]), ["/d/b.jpg", "/note.txt"]);
        let mut run = Pictures { globs: Vec::new() }.start(&ReadOptions::default());
        let items = items(&[]);
        let error = run.fetch(&items[0].1).unwrap_err().error;
        assert!(error.contains("checksum"), "{error}");
        assert_eq!(run.fetch(&items[1].1).unwrap(), 6);
    }
}
