//! The members of an archive, whatever its format: links are followed to what they lead to, and what is no file is told by reason.

use std::collections::{HashMap, HashSet};

use orchestra_store::{PassedOver, is_hidden};

use super::archive_links::{ArchiveLink, Astray, Links, MOST_LINKS, clean};

/// Where bytes lie, or why they cannot be found.
pub type Placed<P> = Result<P, Astray>;
type EntryOf<A> = ArchiveEntry<<A as Entries>::Place, <A as Entries>::Link>;

/// The entries of an archive, which can be read again from the first one on.
pub trait Entries {
    /// Where the bytes of a member lie.
    type Place: Copy;
    /// A link as its entry has it.
    type Link;
    /// How far the archive is read.
    type Walk: Copy;
    /// How an archive is written without links.
    const WITHOUT_LINKS: &'static str;

    fn entry(&mut self) -> Result<Option<EntryOf<Self>>, String>;

    /// Goes to another place, `None` being the beginning. Gives where it was.
    fn go_to(&mut self, walk: Option<Self::Walk>) -> Result<Self::Walk, String>;

    /// What a link leads to. Goes back to where it was.
    fn target(&mut self, link: &Self::Link) -> Result<ArchiveLink, String>;

    /// The path that is followed for a link of this name.
    ///
    /// # Errors
    /// It leads out of the archive.
    fn path(name: &[u8], link: &Self::Link) -> Result<Vec<u8>, Astray>;

    /// Whether the link is another name of what had its target's name before it.
    fn is_hard(link: &Self::Link) -> bool;
}

#[derive(Debug)]
pub struct ArchiveEntry<P, L> {
    pub name: Vec<u8>,
    /// Where it stands in the archive.
    pub at: u64,
    pub holds: EntryContent<P, L>,
}

#[derive(Debug)]
pub enum EntryContent<P, L> {
    File(Placed<P>),
    Link(L),
    Nothing(PassedOver),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member<P> {
    File {
        name: Vec<u8>,
        /// Of a link, that of the member that it leads to.
        place: Placed<P>,
    },
    PassedOver(PassedOver),
}

/// Reads an archive from its beginning.
#[derive(Debug)]
pub struct Members<A: Entries> {
    archive: A,
    takes_hidden: bool,
    /// Found with the first link.
    targets: Option<LinkTargets<A::Place>>,
}

#[derive(Debug)]
struct LinkTargets<P> {
    links: Links,
    /// By name, in the order of the archive: where the entry stands, and where the bytes lie.
    files: HashMap<Vec<u8>, Vec<(u64, Placed<P>)>>,
    folders: HashSet<Vec<u8>>,
}

impl<A: Entries> Members<A> {
    pub fn of(archive: A) -> Self {
        Self { archive, takes_hidden: false, targets: None }
    }

    /// Whether members count whose names say that they are hidden.
    pub fn with_hidden(self, takes_hidden: bool) -> Self {
        Self { takes_hidden, ..self }
    }

    /// The next member; `None` at the end of the archive.
    pub fn next(&mut self) -> Result<Option<Member<A::Place>>, String> {
        let Some(ArchiveEntry { name, at, holds }) = self.archive.entry()? else { return Ok(None) };
        if !self.takes_hidden && is_hidden(&name) {
            return Ok(Some(Member::PassedOver(PassedOver::Hidden)));
        }
        let place = match holds {
            EntryContent::File(place) => place,
            EntryContent::Nothing(reason) => return Ok(Some(Member::PassedOver(reason))),
            EntryContent::Link(link) => {
                let targets = match &mut self.targets {
                    Some(targets) => targets,
                    none => none.insert(LinkTargets::find(&mut self.archive)?),
                };
                match targets.of(A::path(&name, &link), A::is_hard(&link).then_some(at)) {
                    Some(place) => place,
                    None => return Ok(Some(Member::PassedOver(PassedOver::FolderLink))),
                }
            }
        };
        Ok(Some(Member::File { name, place }))
    }
}

impl<P: Copy> LinkTargets<P> {
    /// Reads the whole archive twice: for its links, and for what they lead to. So an archive without links is read once, and memory holds links alone.
    fn find<A: Entries<Place = P>>(archive: &mut A) -> Result<Self, String> {
        let here = archive.go_to(None)?;
        let mut targets = Self { links: Links::default(), files: HashMap::new(), folders: HashSet::new() };
        let (mut paths, mut n_links) = (Vec::new(), 0);
        while let Some(ArchiveEntry { name, holds, .. }) = archive.entry()? {
            let EntryContent::Link(link) = holds else {
                targets.links.see(&name, None);
                continue;
            };
            n_links += 1;
            if n_links > MOST_LINKS {
                return Err(format!(
                    "it has more than {MOST_LINKS} links, and no more are followed: write it {}",
                    A::WITHOUT_LINKS
                ));
            }
            paths.extend(A::path(&name, &link));
            targets.links.see(&name, Some(archive.target(&link)?));
        }
        let wanted: HashSet<Vec<u8>> =
            paths.iter().filter_map(|path| targets.links.follow(path).ok()).collect();
        archive.go_to(None)?;
        while let Some(ArchiveEntry { name, at, holds }) = archive.entry()? {
            let name = clean(&name);
            let mut above = name.as_slice();
            while let Some(slash) = above.iter().rposition(|byte| *byte == b'/') {
                above = &above[..slash];
                if wanted.contains(above) {
                    targets.folders.insert(above.to_vec());
                }
            }
            match holds {
                _ if !wanted.contains(&name) => {}
                EntryContent::File(place) => targets.files.entry(name).or_default().push((at, place)),
                EntryContent::Nothing(PassedOver::Folder) => drop(targets.folders.insert(name)),
                EntryContent::Nothing(_) | EntryContent::Link(_) => {}
            }
        }
        archive.go_to(Some(here))?;
        Ok(targets)
    }

    /// Where the bytes lie to which a path leads; `None`: it leads to a folder. Of several members of a name it is the last; of those before an entry
    /// that stands at `before`, if there are such.
    fn of(&self, path: Result<Vec<u8>, Astray>, before: Option<u64>) -> Option<Placed<P>> {
        let target = match path.and_then(|path| self.links.follow(&path)) {
            Ok(target) => target,
            Err(astray) => return Some(Err(astray)),
        };
        let Some(files) = self.files.get(&target) else {
            return (!self.folders.contains(&target)).then_some(Err(Astray::Nowhere));
        };
        let chosen = match before {
            Some(before) => files.iter().rfind(|(at, _)| *at < before).or(files.first()),
            None => files.last(),
        };
        chosen.map(|(_, place)| *place)
    }
}
