//! Links within an archive: which member a link leads to, through other links and linked folders. It reads nothing, and follows no link out of the
//! archive.

use std::collections::HashMap;

/// Links of an archive whose names are kept in memory.
pub const MOST_LINKS: usize = 1 << 18;

/// Links that are followed from one link on; as many as the kernel follows in a path.
const MOST_HOPS: usize = 40;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchiveLink {
    /// Another name of the member of this name.
    Hard(Vec<u8>),
    /// A path from the folder of the link on.
    Symbolic(Vec<u8>),
}

impl ArchiveLink {
    /// The path from the root of the archive on that a link of this name stands for.
    pub fn path(&self, name: &[u8]) -> Result<Vec<u8>, Astray> {
        match self {
            Self::Hard(target) => Ok(target.clone()),
            Self::Symbolic(target) if target.starts_with(b"/") => Err(Astray::Outside),
            Self::Symbolic(target) => {
                let folder = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
                Ok([&name[..folder], target].concat())
            }
        }
    }
}

/// Why the bytes of a member cannot be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Astray {
    /// No member has the name to which it leads.
    Nowhere,
    /// It leads out of the archive.
    Outside,
    Loop,
    /// Its bytes are there in pieces.
    Sparse,
}

impl Astray {
    pub const ALL: [Self; 4] = [Self::Nowhere, Self::Outside, Self::Loop, Self::Sparse];

    /// What it is and what to do, as the end of a sentence.
    pub fn why(self) -> &'static str {
        match self {
            Self::Nowhere => {
                "is a link to no member of the archive: put the file that it names into the archive, too, or follow links when you write it (`tar -h`, `zip` without `-y`)"
            }
            Self::Outside => {
                "is a link out of the archive, which is not followed: put the file itself into the archive (`tar -h`, `zip` without `-y`)"
            }
            Self::Loop => {
                "is a link that leads back to itself, so it has no bytes: leave it out of the archive"
            }
            Self::Sparse => "is sparse, which is not read: write the archive without `--sparse`",
        }
    }
}

#[derive(Debug, Default)]
pub struct Links(HashMap<Vec<u8>, ArchiveLink>);

impl Links {
    /// A member of this name follows, which takes the place of an earlier one.
    pub fn see(&mut self, name: &[u8], link: Option<ArchiveLink>) {
        let name = clean(name);
        match link {
            // Given twice, a file is stored once and then as a link to its own name.
            Some(ArchiveLink::Hard(target)) if clean(&target) == name => {}
            Some(link) => drop(self.0.insert(name, link)),
            None => drop(self.0.remove(&name)),
        }
    }

    /// The name, as [`clean`] gives it, of the member or folder that the path leads to; whether there is one is not known here.
    pub fn follow(&self, path: &[u8]) -> Result<Vec<u8>, Astray> {
        let mut way: Vec<Vec<u8>> = parts(path).rev().map(<[u8]>::to_vec).collect();
        let mut reached: Vec<Vec<u8>> = Vec::new();
        let mut hops = 0;
        while let Some(part) = way.pop() {
            if part == b".." {
                reached.pop().ok_or(Astray::Outside)?;
                continue;
            }
            reached.push(part);
            let Some(link) = self.0.get(&reached.join(&b'/')) else { continue };
            hops += 1;
            if hops > MOST_HOPS {
                return Err(Astray::Loop);
            }
            let target = match link {
                ArchiveLink::Hard(target) => {
                    reached.clear();
                    target
                }
                ArchiveLink::Symbolic(target) if target.starts_with(b"/") => return Err(Astray::Outside),
                ArchiveLink::Symbolic(target) => {
                    reached.pop();
                    target
                }
            };
            way.extend(parts(target).rev().map(<[u8]>::to_vec));
        }
        Ok(reached.join(&b'/'))
    }
}

/// A name without what says nothing: `./a//b` and `/a/b` are `a/b`.
pub fn clean(name: &[u8]) -> Vec<u8> {
    parts(name).collect::<Vec<_>>().join(&b'/')
}

fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_through_links_and_folders_and_never_out_of_the_archive() {
        let mut links = Links::default();
        let symbolic = [
            ("a/l", "../b/x"),
            ("chain", "a/l"),
            ("folder", "b"),
            ("through", "folder/x"),
            ("out", "../x"),
            ("root", "/x"),
            ("deep/out", "../../x"),
            ("round", "round"),
            ("one", "two"),
            ("two", "one"),
        ];
        for (name, target) in symbolic {
            links.see(name.as_bytes(), Some(ArchiveLink::Symbolic(target.into())));
        }
        for (name, target) in [("./h", "./b/x"), ("hh", "h"), ("to-link", "a/l"), ("self", "./self")] {
            links.see(name.as_bytes(), Some(ArchiveLink::Hard(target.into())));
        }
        let follow = |name: &str| links.follow(name.as_bytes()).map(|name| String::from_utf8(name).unwrap());
        for name in ["a/l", "chain", "through", "h", "hh", "to-link", "b/x", "./folder/x"] {
            assert_eq!(follow(name).as_deref(), Ok("b/x"), "{name}");
        }
        assert_eq!(follow("self").as_deref(), Ok("self"));
        for (name, why) in [
            ("out", Astray::Outside),
            ("root", Astray::Outside),
            ("deep/out", Astray::Outside),
            ("round", Astray::Loop),
            ("one", Astray::Loop),
        ] {
            assert_eq!(follow(name), Err(why), "{name}");
        }
        assert_eq!(ArchiveLink::Symbolic(b"../x".into()).path(b"a/b/l"), Ok(b"a/b/../x".to_vec()));
        assert_eq!(ArchiveLink::Symbolic(b"/x".into()).path(b"l"), Err(Astray::Outside));
        links.see(b"./a/l", None);
        assert_eq!(links.follow(b"chain"), Ok(b"a/l".to_vec()), "a file has taken the place of the link");
    }
}
