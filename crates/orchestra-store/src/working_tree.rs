//! A copy of a working tree, for commands that shall see it as it was: found by what it contains, so an unchanged tree is copied once. It never
//! writes to the tree.
//!
//! Of a git repository these are the files that git tracks, as they are now, and those that it does not ignore; elsewhere all files. What a file
//! of the copy shares with its origin is at most what the file system copies on the first write.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

/// Most bytes and files of a tree: it is code, and no data.
const MAX_BYTES: u64 = 1 << 30;
const MAX_FILES: usize = 100_000;

/// What a hook of git, or `git rebase --exec`, says of its own repository to all that it starts: with these, git would look there.
const OF_CALLER: [&str; 7] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_PREFIX",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkingTree {
    root: PathBuf,
    /// Relative to the root, in their order.
    files: BTreeSet<PathBuf>,
    /// Of the names and contents of all files.
    digest: [u8; 32],
}

/// Why a working tree cannot be copied; completes "the working tree cannot be copied: ..".
#[derive(Debug, thiserror::Error)]
pub enum WorkingTreeError {
    /// It is not code alone.
    #[error(
        "`{}` holds {what}; name what is no code in its `.gitignore`, or set `cwd` to a folder with less", root.display()
    )]
    TooLarge {
        root: PathBuf,
        /// More than how much of what.
        what: String,
    },
    /// Git does not list it.
    #[error("git does not list the files of `{}`: {why}", root.display())]
    Git {
        root: PathBuf,
        /// What git says.
        why: String,
    },
    /// A file cannot be read or written.
    #[error("`{}`: {error}", path.display())]
    Io {
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

impl WorkingTree {
    /// Looks at the tree below `root`, without the files and folders of `except`, which runs write.
    ///
    /// # Errors
    /// It is too large, or a file of it cannot be read.
    pub fn read(root: &Path, except: &[&Path]) -> Result<Self, WorkingTreeError> {
        let mut files = BTreeSet::new();
        if is_of_git(root) {
            let mut repositories = vec![PathBuf::new()];
            while let Some(repository) = repositories.pop() {
                let listed = match of_git(root, &repository) {
                    // Of another owner, or copied without what it names: git knows it from outside alone.
                    Err(_) if !repository.as_os_str().is_empty() => {
                        add(root, &repository, except, &mut files)?;
                        continue;
                    }
                    listed => listed?,
                };
                for path in listed {
                    let whole = root.join(&path);
                    let is_left_out = except.iter().any(|except| whole.starts_with(except));
                    // An empty `.git` is none: git then answers with the folder itself.
                    let is_itself = path.components().eq(repository.components());
                    match !is_left_out && !is_itself && is_repository(&whole) {
                        true => repositories.push(path),
                        false => add(root, &path, except, &mut files)?,
                    }
                }
            }
        } else {
            add(root, Path::new(""), except, &mut files)?;
        }
        let digest = digest(root, &files)?;
        Ok(Self { root: root.to_owned(), files, digest })
    }

    /// Of the names and contents of all files.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Where the copy lies in this folder.
    pub fn place(&self, folder: &Path) -> PathBuf {
        folder.join(self.digest[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    /// Copies it to its place, unless it is there as it was copied: commands that ran in a copy may have written into it. The copy is whole or not there
    /// at all.
    ///
    /// # Errors
    /// A file cannot be read or written, or has changed meanwhile.
    pub fn copy(&self, folder: &Path) -> Result<PathBuf, WorkingTreeError> {
        let place = self.place(folder);
        let is_there = place.symlink_metadata().is_ok_and(|meta| meta.is_dir());
        if is_there && digest(&place, &self.files).is_ok_and(|digest| digest == self.digest) {
            return Ok(place);
        }
        fs::create_dir_all(folder).map_err(of(folder))?;
        let next = tempfile::tempdir_in(folder).map_err(of(folder))?;
        for file in &self.files {
            let (from, to) = (self.root.join(file), next.path().join(file));
            copy_file(&from, &to, self.root.as_path()).map_err(of(&from))?;
        }
        if digest(next.path(), &self.files)? != self.digest {
            let error = io::Error::other(
                "a file has changed while it was copied, or since the run began: start again",
            );
            return Err(WorkingTreeError::Io { path: self.root.clone(), error });
        }
        fs::set_permissions(next.path(), fs::Permissions::from_mode(0o755)).map_err(of(next.path()))?;
        if place.symlink_metadata().is_ok() {
            // A command that outlived its run may be in it: it is put aside, and removed by a later start as what is no tree of it.
            let aside = tempfile::Builder::new().prefix("altered-").tempdir_in(folder).map_err(of(folder))?;
            fs::rename(&place, aside.keep()).map_err(of(&place))?;
        }
        fs::rename(next.keep(), &place).map_err(of(&place))?;
        Ok(place)
    }
}

fn of(path: &Path) -> impl FnOnce(io::Error) -> WorkingTreeError {
    move |error| WorkingTreeError::Io { path: path.to_owned(), error }
}

fn is_of_git(root: &Path) -> bool {
    root.ancestors().any(|folder| folder.join(".git").exists())
}

fn is_repository(folder: &Path) -> bool {
    folder.symlink_metadata().is_ok_and(|meta| meta.is_dir()) && folder.join(".git").exists()
}

/// What git knows of a repository in the tree, relative to the tree. A repository within that one, such as a submodule, is named as a whole, because it has
/// rules of its own about what it ignores.
fn of_git(root: &Path, repository: &Path) -> Result<Vec<PathBuf>, WorkingTreeError> {
    let folder = root.join(repository);
    let failed = |why: String| WorkingTreeError::Git { root: folder.clone(), why };
    let mut git = Command::new("git");
    git.arg("-C").arg(&folder).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    for variable in OF_CALLER {
        git.env_remove(variable);
    }
    let output = git.stdin(Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| repository.join(std::ffi::OsString::from_vec(name.to_vec()))).collect())
}

/// Adds a file, or all files below a folder. What is not there any more is no part of the tree, and neither are pipes and sockets.
fn add(
    root: &Path,
    path: &Path,
    except: &[&Path],
    files: &mut BTreeSet<PathBuf>,
) -> Result<(), WorkingTreeError> {
    let whole = root.join(path);
    if except.iter().any(|except| whole.starts_with(except))
        || path.file_name().is_some_and(|name| name == ".git")
    {
        return Ok(());
    }
    let kind = match whole.symlink_metadata() {
        Ok(meta) => meta.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(of(&whole)(error)),
    };
    if kind.is_dir() {
        for entry in fs::read_dir(&whole).map_err(of(&whole))? {
            add(root, &path.join(entry.map_err(of(&whole))?.file_name()), except, files)?;
        }
    } else if kind.is_file() || kind.is_symlink() {
        files.insert(path.to_owned());
        if files.len() > MAX_FILES {
            let what = format!("more than {MAX_FILES} files");
            return Err(WorkingTreeError::TooLarge { root: root.to_owned(), what });
        }
    }
    Ok(())
}

fn digest(root: &Path, files: &BTreeSet<PathBuf>) -> Result<[u8; 32], WorkingTreeError> {
    let (mut hash, mut total) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 18];
    for file in files {
        let path = root.join(file);
        let name = file.as_os_str().as_bytes();
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        let meta = path.symlink_metadata().map_err(of(&path))?;
        if meta.is_symlink() {
            let target = target(&path, root).map_err(of(&path))?;
            hash.update(b"link");
            hash.update(target.as_os_str().as_bytes());
            continue;
        }
        total += meta.len();
        if total > MAX_BYTES {
            let what = format!("more than {} MiB", MAX_BYTES >> 20);
            return Err(WorkingTreeError::TooLarge { root: root.to_owned(), what });
        }
        hash.update([u8::from(meta.mode() & 0o111 != 0)]);
        if !meta.is_file() {
            return Err(of(&path)(io::Error::other("it is no file any more")));
        }
        let mut of_file = Sha256::new();
        let mut open = File::open(&path).map_err(of(&path))?;
        loop {
            match open.read(&mut buffer).map_err(of(&path))? {
                0 => break,
                n => of_file.update(&buffer[..n]),
            }
        }
        hash.update(of_file.finalize());
    }
    Ok(hash.finalize().into())
}

fn copy_file(from: &Path, to: &Path, root: &Path) -> io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    if !from.is_symlink() {
        return fs::copy(from, to).map(drop);
    }
    symlink(target(from, root)?, to)
}

/// Where the copy of a link leads: within the tree to the copy, out of it to where it leads now.
fn target(link: &Path, root: &Path) -> io::Result<PathBuf> {
    let target = fs::read_link(link)?;
    let whole = clean(&link.parent().unwrap_or(root).join(&target));
    Ok(if target.is_relative() && whole.starts_with(root) { target } else { whole })
}

/// Without `.` and `..`; no link on the way is followed.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(clean.pop()),
            part => clean.push(part),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let (root, out) = (place.path().join("code"), place.path().join("code/out"));
        fs::create_dir_all(root.join("lib")).unwrap();
        fs::create_dir_all(&out).unwrap();
        fs::write(root.join("run.sh"), "echo 1").unwrap();
        fs::set_permissions(root.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(root.join("lib/a"), "a").unwrap();
        fs::write(out.join("result"), "1").unwrap();
        fs::write(place.path().join("data"), "d").unwrap();
        symlink("lib/a", root.join("inner")).unwrap();
        symlink("../data", root.join("outer")).unwrap();
        (place, root, out)
    }

    #[test]
    fn a_copy_is_found_by_its_contents_and_holds_no_results() {
        let (_place, root, out) = tree();
        let copies = out.join("copies");
        let tree = WorkingTree::read(&root, &[&out]).unwrap();
        let copy = tree.copy(&copies).unwrap();
        assert!(copy.join("run.sh").metadata().unwrap().mode() & 0o100 != 0 && !copy.join("out").exists());
        fs::write(root.join("lib/a"), "b").unwrap();
        assert_eq!(fs::read_to_string(copy.join("inner")).unwrap(), "a", "a link within leads to the copy");
        assert_eq!(fs::read_to_string(copy.join("outer")).unwrap(), "d", "and one out of it to where it led");
        let changed = WorkingTree::read(&root, &[&out]).unwrap();
        assert_ne!(changed.copy(&copies).unwrap(), copy);
        fs::write(root.join("lib/a"), "a").unwrap();
        assert_eq!(WorkingTree::read(&root, &[&out]).unwrap().copy(&copies).unwrap(), copy);
        assert_eq!(fs::read_dir(copies).unwrap().count(), 2);
    }

    #[test]
    fn a_copy_that_was_altered_is_made_anew() {
        let (_place, root, out) = tree();
        let copies = out.join("copies");
        let tree = WorkingTree::read(&root, &[&out]).unwrap();
        let alter: [fn(&Path); 5] = [
            |copy| fs::write(copy.join("lib/a"), "b").unwrap(),
            |copy| fs::remove_file(copy.join("lib/a")).unwrap(),
            |copy| fs::set_permissions(copy.join("run.sh"), fs::Permissions::from_mode(0o644)).unwrap(),
            |copy| {
                fs::remove_file(copy.join("run.sh")).unwrap();
                fs::create_dir(copy.join("run.sh")).unwrap();
            },
            |copy| {
                fs::remove_file(copy.join("outer")).unwrap();
                symlink("lib/a", copy.join("outer")).unwrap();
            },
        ];
        for alter in alter {
            alter(&tree.copy(&copies).unwrap());
            let copy = tree.copy(&copies).unwrap();
            assert_eq!(digest(&copy, &tree.files).unwrap(), tree.digest);
        }
        // The copy, and those that were altered.
        assert_eq!(fs::read_dir(copies).unwrap().count(), 1 + alter.len());
    }

    #[test]
    fn of_a_repository_are_the_files_that_git_does_not_ignore() {
        let (_place, root, out) = tree();
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.arg("-C").arg(&root).args(arguments);
            assert!(git.output().unwrap().status.success(), "{arguments:?}");
        };
        git(&["init"]);
        fs::write(root.join(".gitignore"), "*.bin\n").unwrap();
        fs::write(root.join("large.bin"), "x").unwrap();
        fs::write(root.join("gone"), "x").unwrap();
        git(&["add", "gone", "run.sh"]);
        fs::remove_file(root.join("gone")).unwrap();
        let tree = WorkingTree::read(&root, &[&out]).unwrap();
        let names: Vec<&str> = tree.files.iter().map(|file| file.to_str().unwrap()).collect();
        assert_eq!(names, [".gitignore", "inner", "lib/a", "outer", "run.sh"]);
    }

    #[test]
    fn of_repositories_within_a_repository_are_the_files_that_they_do_not_ignore() {
        let (_place, root, out) = tree();
        let (module, other) = (root.join("module"), root.join("lib/other"));
        let git = |folder: &Path, arguments: &[&str]| {
            let mut git = Command::new("git");
            git.arg("-C").arg(folder).args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(arguments);
            let output = git.output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {output:?}");
        };
        for (folder, name) in [(&root, "run.sh"), (&module, "x"), (&other, "y")] {
            fs::create_dir_all(folder).unwrap();
            git(folder, &["init"]);
            fs::write(folder.join(".gitignore"), format!("{name}.bin\n")).unwrap();
            fs::write(folder.join(format!("{name}.bin")), "x").unwrap();
            fs::write(folder.join(name), "x").unwrap();
            git(folder, &["add", name, ".gitignore"]);
            git(folder, &["commit", "-m", "a"]);
        }
        // One that git knows, one that it does not, and a link to a repository, which is a file.
        git(&root, &["add", "module"]);
        symlink("module", root.join("to-module")).unwrap();
        // `out` holds what runs make.
        git(&out, &["init"]);
        let tree = WorkingTree::read(&root, &[&out]).unwrap();
        let names: Vec<&str> = tree.files.iter().map(|file| file.to_str().unwrap()).collect();
        let own = [".gitignore", "inner", "lib/a", "lib/other/.gitignore", "lib/other/y"];
        let rest = ["module/.gitignore", "module/x", "outer", "run.sh", "to-module"];
        assert_eq!(names, [own, rest].concat());
        let copy = tree.copy(&out.join("copies")).unwrap();
        assert!(copy.join("to-module/x").exists() && !copy.join("module/x.bin").exists());
    }

    #[test]
    fn a_tree_with_data_is_refused() {
        let (_place, root, out) = tree();
        let data = File::create(root.join("data.bin")).unwrap();
        data.set_len(MAX_BYTES + 1).unwrap();
        let error = WorkingTree::read(&root, &[&out]).unwrap_err().to_string();
        assert!(error.contains("holds more than 1024 MiB") && error.contains(".gitignore"), "{error}");
    }
}
