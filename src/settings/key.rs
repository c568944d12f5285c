//! One declaration for each setting. [`section!`] makes of a list of fields the plain struct, its
//! defaults, its setters and the table of its keys, so that no two of them can disagree.

use std::fmt;

/// Where a value came from. A later one goes before an earlier one, whichever is applied first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Origin {
    File,
    Environment,
    Code,
}

/// The keys of one section that somebody gave, and who did. No part of what a section *is*: all
/// marks are equal, so comparing two sections compares their values.
#[derive(Clone, Default)]
pub(crate) struct Marks(Vec<(&'static str, Origin)>);

impl Marks {
    pub(crate) fn of(&self, key: &str) -> Option<Origin> {
        self.0.iter().find(|(k, _)| *k == key).map(|(_, o)| *o)
    }

    pub(crate) fn set(&mut self, key: &'static str, origin: Origin) {
        match self.0.iter_mut().find(|(k, _)| *k == key) {
            Some((_, o)) => *o = origin,
            None => self.0.push((key, origin)),
        }
    }
}

impl PartialEq for Marks {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.0.iter().map(|(k, o)| (k, o)))
            .finish()
    }
}

/// The kinds of section a key can stand in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Root,
    Topics,
    Consumers,
    Producers,
}

impl Place {
    /// The path of such a section, with a placeholder where a name or number stands.
    pub(crate) fn pattern(self) -> &'static str {
        match self {
            Self::Root => "Streams",
            Self::Topics => "Streams:Topics:<topic>",
            Self::Consumers => "Streams:Consumers[n]",
            Self::Producers => "Streams:Producers[n]",
        }
    }
}

/// One setting: its row in every table. Values pass as text, since environment variables know
/// nothing else and settings files may quote their numbers.
pub(crate) struct Key<S> {
    /// The name within its section; a colon where a section is nested in it.
    pub(crate) name: &'static str,
    pub(crate) alias: Option<&'static str>,
    /// The field of `S` that holds it.
    #[cfg(test)]
    pub(crate) field: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) unit: fn() -> &'static str,
    pub(crate) allowed: fn() -> String,
    pub(crate) is_list: bool,
    pub(crate) is_secret: bool,
    /// Takes a value, of a list the item of that index; false when it is not allowed.
    pub(crate) put: fn(&mut S, Option<usize>, &str) -> bool,
    /// The value, or the items of a list; nothing when unset.
    pub(crate) get: fn(&S) -> Vec<String>,
    /// The same for eyes and logs: secrets are masked.
    pub(crate) show: fn(&S) -> Vec<String>,
}

/// A struct of settings made by [`section!`].
pub(crate) trait Section: Default + 'static {
    const PLACE: Place;
    const KEYS: &'static [Key<Self>];

    fn marks(&self) -> &Marks;
    fn marks_mut(&mut self) -> &mut Marks;

    /// Whether somebody gave this key a value, be it the default.
    fn is_set(&self, name: &str) -> bool {
        let key = Self::KEYS.iter().find(|k| k.name == name);
        debug_assert!(key.is_some(), "{name} is a key");
        key.is_some_and(|key| {
            let value = (key.get)(self);
            // a field assigned without its setter carries no mark
            !value.is_empty()
                && (self.marks().of(name).is_some() || value != (key.get)(&Self::default()))
        })
    }
}

/// See the module's documentation. A row reads
/// `field: Type = default, "Key" | "Alias", codec, set(argument: Type) conversion;` where alias and
/// `set` are optional. Its doc comment is also the meaning in the table of keys. Fields under `plus`
/// are no keys.
macro_rules! section {
    (
        $(#[$attr:meta])*
        pub struct $name:ident in $place:ident {
            $(
                $(#[doc = $doc:literal])+
                $field:ident: $ty:ty = $default:expr, $key:literal $(| $alias:literal)?, $codec:expr
                    $(, set($arg:ident: $argty:ty) $conv:expr)?;
            )*
        }
        $(plus { $( $(#[$pattr:meta])* $pvis:vis $pfield:ident: $pty:ty, )* })?
    ) => {
        $(#[$attr])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $field: $ty, )*
            $( $( $(#[$pattr])* $pvis $pfield: $pty, )* )?
            marks: $crate::settings::key::Marks,
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $( $field: $default, )*
                    $( $( $pfield: Default::default(), )* )?
                    marks: Default::default(),
                }
            }
        }

        impl $name {
            $( section!(@setter $key, $field, $ty $(, $arg, $argty, $conv)?); )*
        }

        impl $crate::settings::key::Section for $name {
            const PLACE: $crate::settings::key::Place = $crate::settings::key::Place::$place;
            const KEYS: &'static [$crate::settings::key::Key<Self>] = &[
                $( $crate::settings::key::Key {
                    name: $key,
                    alias: section!(@alias $($alias)?),
                    #[cfg(test)]
                    field: stringify!($field),
                    meaning: concat!($($doc),+),
                    unit: || $codec.unit(),
                    allowed: || $codec.allowed(),
                    is_list: $crate::settings::codec::is_list(&$codec),
                    is_secret: $crate::settings::codec::is_secret(&$codec),
                    put: |s, item, text| $codec.put(&mut s.$field, item, text),
                    get: |s| $codec.write(&s.$field),
                    show: |s| $codec.show(&s.$field),
                }, )*
            ];

            fn marks(&self) -> &$crate::settings::key::Marks {
                &self.marks
            }

            fn marks_mut(&mut self) -> &mut $crate::settings::key::Marks {
                &mut self.marks
            }
        }
    };
    (@alias) => { None };
    (@alias $alias:literal) => { Some($alias) };
    (@setter $key:literal, $field:ident, $ty:ty) => {
        section!(@setter $key, $field, $ty, value, $ty, value);
    };
    (@setter $key:literal, $field:ident, $ty:ty, $arg:ident, $argty:ty, $conv:expr) => {
        #[doc = concat!("Sets `", $key, "`, before whatever file and environment say.")]
        #[must_use]
        pub fn $field(mut self, $arg: $argty) -> Self {
            self.$field = $conv;
            self.marks.set($key, $crate::settings::key::Origin::Code);
            self
        }
    };
}

/// An enum whose variants are the allowed names of a setting.
macro_rules! choices {
    (
        $(#[$attr:meta])*
        pub enum $name:ident { $( $(#[$vattr:meta])* $variant:ident, )+ }
    ) => {
        $(#[$attr])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum $name { $( $(#[$vattr])* $variant, )+ }

        impl $crate::settings::codec::Named for $name {
            const ALL: &'static [(&'static str, Self)] =
                &[$( (stringify!($variant), Self::$variant) ),+];
        }
    };
}
