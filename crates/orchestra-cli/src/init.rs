//! `orchestra init`: a small workflow that works, to start from. It writes new files only, and overwrites none.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use serde_json::json;

use orchestra_report::shell_word;

use crate::Failed;
use crate::args::{InitArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::stdout;

macro_rules! example {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/images/", $name))
    };
}

/// What is written: the path in the new folder, and the content. Pictures are named for what they show.
const FILES: [(&str, &[u8]); 14] = [
    (WORKFLOW, include_bytes!("init/workflow.toml")),
    ("README.md", include_bytes!("init/README.md")),
    ("models/digits.onnx", include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/digits.onnx"))),
    (
        "models/digits.labels.txt",
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/digits.labels.txt")),
    ),
    ("images/zero.png", example!("digit-0008.png")),
    ("images/one.png", example!("digit-0007.png")),
    ("images/two.png", example!("digit-0003.png")),
    ("images/three.png", example!("digit-0004.png")),
    ("images/four.png", example!("digit-0002.png")),
    ("images/five.png", example!("digit-0047.png")),
    ("images/six.png", example!("digit-0013.png")),
    ("images/seven.png", example!("digit-0018.png")),
    ("images/eight.png", example!("digit-0011.png")),
    ("images/nine.png", example!("digit-0001.png")),
];

/// Files in the way beyond which they are counted.
const MOST_NAMED: usize = 5;
const WORKFLOW: &str = "workflow.toml";

pub fn init(args: &InitArgs, verbosity: Verbosity) -> Result<ExitCode, Failed> {
    refuse_to_overwrite(&args.folder)?;
    let mut created = Created::default();
    if let Err(error) = write_all(&args.folder, &mut created) {
        created.remove();
        return Err(Failed::new(ExitCode::TryAgain, error));
    }
    let file = args.folder.join(WORKFLOW);
    let next = format!("orchestra run {}", shell_word(&file.to_string_lossy()));
    if args.json {
        let files: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        return stdout::print(&format!(
            "{}\n",
            json!({"folder": args.folder.to_string_lossy(), "files": files, "next": next})
        ));
    }
    if verbosity.quiet {
        return Ok(ExitCode::Done);
    }
    stdout::print(&format!(
        "a workflow to start from is in `{}`:
  workflow.toml   what to run; every table has a comment
  images/         ten pictures of handwritten digits
  models/         a small model that reads them, and its labels
  README.md       what to try next

run it:
  {next}
",
        args.folder.display()
    ))
}

/// Everything that is in the way is named at once, before anything is written.
fn refuse_to_overwrite(folder: &Path) -> Result<(), Failed> {
    if folder.exists() && !folder.is_dir() {
        let error = anyhow!("`{}` is there already and is no folder; name another one", folder.display());
        return Err(Failed::new(ExitCode::Usage, error));
    }
    let names = FILES.iter().map(|(name, _)| *name);
    let found: Vec<&str> = names.filter(|name| folder.join(name).symlink_metadata().is_ok()).collect();
    if found.is_empty() {
        return Ok(());
    }
    let error = anyhow!(
        "nothing was written, because `{}` already holds {}; name another folder, or move them away",
        folder.display(),
        named(&found)
    );
    Err(Failed::new(ExitCode::Usage, error))
}

fn named(files: &[&str]) -> String {
    let shown = if files.len() > MOST_NAMED { MOST_NAMED - 1 } else { files.len() };
    let mut names: Vec<String> = files[..shown].iter().map(|name| format!("`{name}`")).collect();
    if shown < files.len() {
        names.push(format!("and {} more of its files", files.len() - shown));
    }
    names.join(", ")
}

/// What this start made, in the order in which it did.
#[derive(Default)]
struct Created {
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Created {
    /// Takes it all back, so that half a workflow is not in the way of the next try.
    fn remove(&self) {
        // The first error is what the user is told; a folder stays if another program has put something into it.
        for file in self.files.iter().rev() {
            fs::remove_file(file).ok();
        }
        for folder in self.folders.iter().rev() {
            fs::remove_dir(folder).ok();
        }
    }
}

fn write_all(folder: &Path, created: &mut Created) -> anyhow::Result<()> {
    for (name, content) in FILES {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            make_folder(parent, created)
                .with_context(|| format!("cannot make the folder `{}`", parent.display()))?;
        }
        write_new(&path, content, created).with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    Ok(())
}

/// Like `create_dir_all`, but remembers which ones are new.
fn make_folder(folder: &Path, created: &mut Created) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent() {
        make_folder(parent, created)?;
    }
    fs::create_dir(folder)?;
    created.folders.push(folder.to_owned());
    Ok(())
}

fn write_new(path: &Path, content: &[u8], created: &mut Created) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    created.files.push(path.to_owned());
    file.write_all(content)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_name_is_written_once_and_stays_in_the_folder() {
        let names: BTreeSet<&str> = FILES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), FILES.len());
        assert!(FILES.iter().all(|(name, content)| !name.starts_with(['/', '.']) && !content.is_empty()));
    }
}
