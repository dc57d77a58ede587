//! Kinds of stages whose settings are typed structs: what the planner and the loaders ask of a kind follows from them.

use std::marker::PhantomData;
use std::sync::Arc;

use orchestra_core::shapes::{KindSettings, Map, RowWork, map_from};

use super::{Connect, Draft, StageKind};
use crate::fields::{Fields, Upstreams};
use crate::key::Key;
use crate::settings::Settings;

/// The settings of a kind of stage.
pub trait TypedStage: Settings + Connect + 'static {
    /// As `kind = ".."` names it.
    const NAME: &'static str;
    /// What it does, in a sentence.
    const ABOUT: &'static str;
    /// What is done to a row, with all that it needs: often the settings themselves. `()` for a stage that works on no row by itself.
    type Work: RowWork;

    /// As [`StageKind::upstreams`].
    fn upstreams(fields: &mut Fields<'_, '_>) -> Upstreams {
        fields.upstreams()
    }

    /// Reports settings that do not go together.
    fn check(&self, fields: &mut Fields<'_, '_>) {
        let _ = fields;
    }
}

/// The kind of stage with these settings.
pub struct Typed<K>(PhantomData<fn() -> K>);

impl<K> Typed<K> {
    #[must_use]
    pub const fn kind() -> Self {
        Self(PhantomData)
    }
}

impl<K: TypedStage> StageKind for Typed<K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn about(&self) -> &'static str {
        K::ABOUT
    }

    fn keys(&self) -> &'static [Key] {
        K::KEYS
    }

    fn upstreams(&self, fields: &mut Fields<'_, '_>) -> Upstreams {
        K::upstreams(fields)
    }

    fn read(&self, fields: &mut Fields<'_, '_>) -> Option<Draft> {
        let settings = K::read(fields)?;
        settings.check(fields);
        Some(Draft::Stage(Box::new(settings)))
    }

    fn revive(&self, settings: &KindSettings) -> Option<Arc<dyn Map>> {
        map_from::<K::Work>(K::NAME, settings)
    }
}
