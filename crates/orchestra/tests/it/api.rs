//! `api.txt` lists what the crate offers: a change of that is a change of this file. It reads the sources, with the bodies left out; of what the crate takes
//! from others it lists names. `UPDATE_API=1` writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, File, ImplItem, Item, ItemImpl, ItemUse, Meta, Type, UseTree, Visibility};

/// The lines of a macro without arguments that stand in an `impl`.
type Macros = BTreeMap<String, Vec<ImplItem>>;

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("")
}

fn parse(path: &Path) -> File {
    syn::parse_file(&fs::read_to_string(path).unwrap())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn is_public(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    let is_hidden = |attribute: &Attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("doc") && list.tokens.to_string() == "hidden",
        _ => false,
    };
    matches!(visibility, Visibility::Public(_)) && !attributes.iter().any(is_hidden)
}

/// Leaves those that a user has to know.
fn trim(attributes: &mut Vec<Attribute>) {
    attributes.retain(|it| ["cfg", "derive", "non_exhaustive"].iter().any(|name| it.path().is_ident(name)));
}

/// The names that a `use` takes from modules of the crate.
fn names(tree: &UseTree, found: &mut BTreeSet<String>) {
    match tree {
        UseTree::Path(path) => names(&path.tree, found),
        UseTree::Group(group) => group.items.iter().for_each(|tree| names(tree, found)),
        UseTree::Name(name) => drop(found.insert(name.ident.to_string())),
        UseTree::Rename(name) => drop(found.insert(name.ident.to_string())),
        _ => {}
    }
}

fn self_name(ty: &Type) -> Option<String> {
    let Type::Path(path) = ty else { return None };
    path.path.segments.last().map(|segment| segment.ident.to_string())
}

/// The item as users see it, if they do; of a private module within a file, what is implemented there.
fn shown(item: Item, macros: &Macros, is_exported: &dyn Fn(&str) -> bool) -> Vec<Item> {
    let Item::Mod(module) = item else { return one_shown(item, macros, is_exported).into_iter().collect() };
    let is_of_feature = |it: &&Attribute| matches!(&it.meta, Meta::List(list) if list.path.is_ident("cfg") && list.tokens.to_string() != "test");
    let (Some(when), Some((_, items))) = (module.attrs.iter().find(is_of_feature), module.content) else {
        return Vec::new();
    };
    let mut items: Vec<Item> = items.into_iter().flat_map(|item| shown(item, macros, is_exported)).collect();
    for item in &mut items {
        if let Item::Impl(item) = item {
            item.attrs.insert(0, when.clone());
        }
    }
    items
}

fn one_shown(item: Item, macros: &Macros, is_exported: &dyn Fn(&str) -> bool) -> Option<Item> {
    let sees = |name: &syn::Ident, visibility: &Visibility, attributes: &[Attribute]| {
        is_public(visibility, attributes) && is_exported(&name.to_string())
    };
    match item {
        Item::Struct(mut item) if sees(&item.ident, &item.vis, &item.attrs) => {
            trim(&mut item.attrs);
            item.fields.iter_mut().for_each(|field| field.attrs.clear());
            if let syn::Fields::Named(fields) = &mut item.fields {
                let public = std::mem::take(&mut fields.named).into_iter();
                fields.named = public.filter(|field| matches!(field.vis, Visibility::Public(_))).collect();
            } else {
                let hidden =
                    item.fields.iter_mut().filter(|field| !matches!(field.vis, Visibility::Public(_)));
                for field in hidden {
                    (field.vis, field.ty) = (Visibility::Inherited, syn::parse_str("_").unwrap());
                }
            }
            Some(Item::Struct(item))
        }
        Item::Enum(mut item) if sees(&item.ident, &item.vis, &item.attrs) => {
            trim(&mut item.attrs);
            let visible = std::mem::take(&mut item.variants).into_iter();
            let public: Visibility = syn::parse_str("pub").unwrap();
            item.variants = visible.filter(|variant| is_public(&public, &variant.attrs)).collect();
            for variant in &mut item.variants {
                variant.attrs.clear();
                variant.fields.iter_mut().for_each(|field| field.attrs.clear());
            }
            Some(Item::Enum(item))
        }
        Item::Trait(mut item) if sees(&item.ident, &item.vis, &item.attrs) => {
            trim(&mut item.attrs);
            item.items.iter_mut().for_each(|item| {
                if let syn::TraitItem::Const(constant) = item {
                    constant.attrs.clear();
                }
            });
            Some(Item::Trait(item))
        }
        Item::Impl(item) if self_name(&item.self_ty).is_none_or(|name| is_exported(&name)) => {
            implemented(item, macros).map(Item::Impl)
        }
        Item::Use(item) if is_public(&item.vis, &item.attrs) => Some(Item::Use(item)),
        // What it makes stands in its arguments.
        Item::Macro(item) if item.ident.is_none() => Some(Item::Macro(item)),
        _ => None,
    }
}

/// The name of a type that the item declares, and whether others may see it.
fn type_of(item: &Item) -> Option<(String, bool)> {
    match item {
        Item::Struct(item) => Some((item.ident.to_string(), is_public(&item.vis, &item.attrs))),
        Item::Enum(item) => Some((item.ident.to_string(), is_public(&item.vis, &item.attrs))),
        Item::Trait(item) => Some((item.ident.to_string(), is_public(&item.vis, &item.attrs))),
        _ => None,
    }
}

/// Of a trait, that it is implemented; else its public methods.
fn implemented(mut item: ItemImpl, macros: &Macros) -> Option<ItemImpl> {
    trim(&mut item.attrs);
    if item.trait_.is_some() {
        item.items.clear();
        return Some(item);
    }
    let expanded = std::mem::take(&mut item.items).into_iter().flat_map(|item| match item {
        ImplItem::Macro(call) => macros[&call.mac.path.segments.last().unwrap().ident.to_string()].clone(),
        item => vec![item],
    });
    item.items = expanded
        .filter_map(|item| match item {
            ImplItem::Fn(mut method) if is_public(&method.vis, &method.attrs) => {
                trim(&mut method.attrs);
                method.block.stmts.clear();
                Some(ImplItem::Fn(method))
            }
            _ => None,
        })
        .collect();
    (!item.items.is_empty()).then_some(item)
}

fn macros(files: &BTreeMap<String, File>) -> Macros {
    let items = files.values().flat_map(|file| &file.items);
    let rules = items.filter_map(|item| match item {
        Item::Macro(item) => Some((item.ident.as_ref()?.to_string(), item.mac.tokens.to_string())),
        _ => None,
    });
    let without_arguments = |(name, rules): (String, String)| {
        let body = rules.strip_prefix("() => {")?.rsplit_once('}')?.0.to_owned();
        let methods: ItemImpl = syn::parse_str(&format!("impl T {{ {body} }}")).unwrap();
        Some((name, methods.items))
    };
    rules.filter_map(without_arguments).collect()
}

fn listing() -> String {
    let (sources, launch) = (crates().join("orchestra/src"), crates().join("orchestra-launch/src/lib.rs"));
    let library = parse(&sources.join("lib.rs"));
    let modules = library.items.iter().filter_map(|item| match item {
        Item::Mod(item) => Some((item.ident.to_string(), item)),
        _ => None,
    });
    let modules: Vec<(String, &syn::ItemMod)> = modules.collect();
    let files: BTreeMap<String, File> =
        modules.iter().map(|(name, _)| (name.clone(), parse(&sources.join(format!("{name}.rs"))))).collect();
    let macros = macros(&files);
    let uses = || {
        library.items.iter().filter_map(|item| match item {
            Item::Use(item) if is_public(&item.vis, &item.attrs) => Some(item),
            _ => None,
        })
    };
    let mut exported = BTreeSet::new();
    let is_of_others = |item: &&ItemUse| matches!(&item.tree, UseTree::Path(path) if path.ident.to_string().starts_with("orchestra_"));
    uses().filter(|item| !is_of_others(item)).for_each(|item| names(&item.tree, &mut exported));
    let open: Vec<&String> =
        modules.iter().filter(|(_, it)| is_public(&it.vis, &it.attrs)).map(|(name, _)| name).collect();
    for file in open.iter().map(|name| &files[*name]) {
        exported.extend(file.items.iter().filter_map(type_of).filter(|it| it.1).map(|it| it.0));
    }
    let own: BTreeSet<String> =
        files.values().flat_map(|file| &file.items).filter_map(|item| Some(type_of(item)?.0)).collect();
    // A type of others may be what something is implemented for.
    let is_exported = |name: &str| exported.contains(name) || !own.contains(name);

    let mut items: Vec<Item> = uses().filter(is_of_others).cloned().map(Item::Use).collect();
    for (name, module) in &modules {
        let of_module = files[name].items.iter().cloned();
        let of_module: Vec<Item> = of_module.flat_map(|item| shown(item, &macros, &is_exported)).collect();
        if open.contains(&name) {
            let mut module = (*module).clone();
            trim(&mut module.attrs);
            module.content = Some((syn::token::Brace::default(), of_module));
            items.push(Item::Mod(module));
        } else {
            // What the module depends on, its implementations do.
            let mut conditions = module.attrs.clone();
            trim(&mut conditions);
            items.extend(of_module.into_iter().map(|item| match item {
                Item::Impl(mut item) => {
                    item.attrs.splice(..0, conditions.clone());
                    Item::Impl(item)
                }
                item => item,
            }));
        }
    }
    let is_kind = |item: &Item| matches!(item, Item::Mod(module) if module.ident == "kind");
    let mut kind = parse(&launch).items.into_iter().filter(is_kind);
    if let Some(Item::Mod(mut kind)) = kind.next() {
        kind.attrs.clear();
        items.push(Item::Mod(kind));
    }
    let text = prettyplease::unparse(&File { shebang: None, frontmatter: None, attrs: Vec::new(), items });
    text.replace(" {}\n", ";\n")
}

#[test]
fn the_listing_of_what_the_crate_offers_is_up_to_date() {
    let (path, now) = (crates().join("orchestra/api.txt"), listing());
    if std::env::var_os("UPDATE_API").is_some() {
        fs::write(&path, &now).unwrap();
    }
    let before = fs::read_to_string(&path).unwrap_or_default();
    let (old, new): (BTreeSet<&str>, BTreeSet<&str>) = (before.lines().collect(), now.lines().collect());
    let gone = old.difference(&new).map(|line| format!("- {line}"));
    let come: Vec<String> = gone.chain(new.difference(&old).map(|line| format!("+ {line}"))).collect();
    assert!(
        before == now,
        "what the crate offers has changed; if that is meant, `UPDATE_API=1 cargo test -p orchestra --test it api` lists it:\n{}",
        come.join("\n")
    );
}

/// The paths of the library that a text names.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    text.split(move |c| !is_path(c)).filter(|word| word.starts_with("orchestra::") && !word.ends_with(':'))
}

#[test]
fn what_documents_name_of_the_library_is_offered() {
    let listing = listing();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let offered: BTreeSet<&str> = listing.split(|c| !is_word(c)).collect();
    let docs = crates().join("../docs");
    let folders = [docs.join("guide"), docs];
    let files =
        folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    let mut n = 0;
    for file in files.filter(|file| file.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&file).unwrap();
        for path in named(&text).filter(|path| !path.starts_with("orchestra::telemetry::")) {
            n += 1;
            let name = path.rsplit("::").next().unwrap();
            assert!(offered.contains(name), "{}: `{path}` is not offered", file.display());
        }
    }
    assert!(n > 5, "only {n} names were found");
}
