//! Where settings come from: a JSON text, a file, the environment.

use std::{env, fs, path::Path};

use super::{
    Settings,
    bind::{Problems, bind},
    check,
    key::Origin,
    source,
};
use crate::error::{Error, Result};

impl Settings {
    /// Reads a JSON text: its section `Streams` if it has one, else the whole of it.
    ///
    /// Names of keys and their values may be spelled in any case; numbers and flags may be quoted.
    /// Comments and trailing commas are fine, and `null` is the same as leaving the key out.
    ///
    /// # Errors
    ///
    /// The text is no JSON (with line and column), or a key is unknown, given twice, or has a value
    /// that is not allowed. All of them are reported at once, one a line, with the fix.
    pub fn from_json(text: &str) -> Result<Self> {
        Self::from_json_bytes(text.as_bytes())
    }

    /// Reads a JSON file as [`from_json`](Self::from_json) does.
    ///
    /// # Errors
    ///
    /// As `from_json`, or the file cannot be read. The error names the file.
    pub fn from_json_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let named = |e: Error| e.during(format!("settings in {}", path.display()));
        let text = fs::read(path)
            .map_err(|e| named(Error::config("the file cannot be read").caused_by(e)))?;
        Self::from_json_bytes(&text).map_err(named)
    }

    fn from_json_bytes(text: &[u8]) -> Result<Self> {
        let pairs = source::from_json(text).map_err(|e| Error::config(format!("no JSON: {e}")))?;
        let mut settings = Self::default();
        let mut problems = Problems::default();
        bind(&mut settings, &pairs, Origin::File, &mut problems);
        settings.or_all(problems, false)
    }

    /// The defaults, overlaid with the environment; see [`overlay_env`](Self::overlay_env).
    ///
    /// # Errors
    ///
    /// As `overlay_env`.
    pub fn from_env() -> Result<Self> {
        Self::default().overlay_env()
    }

    /// Lays the environment over these settings.
    ///
    /// `Streams__Consumers__0__BatchSize` sets the key `BatchSize` of the first consumer; the case
    /// does not matter, and a topic's name is best written as it is. Entries of lists that are
    /// there are changed, the next number adds one. `STREAMS_KEY_PREFIX` sets `KeyPrefix` when not
    /// blank, and `ASPNETCORE_ENVIRONMENT` or else `DOTNET_ENVIRONMENT` names the environment. What
    /// code has set by a setter stays.
    ///
    /// # Errors
    ///
    /// A variable names an unknown key or has a value that is not allowed; all are reported at once.
    pub fn overlay_env(self) -> Result<Self> {
        let ours = env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            source::is_ours(&name).then(|| match value.into_string() {
                Ok(value) => Ok((name, value)),
                Err(_) => Err(Error::config(format!(
                    "the environment variable {name} is not UTF-8"
                ))),
            })
        });
        self.overlay_env_with(ours.collect::<Result<Vec<_>>>()?)
    }

    /// As [`from_env`](Self::from_env), from variables that are given.
    ///
    /// # Errors
    ///
    /// As `overlay_env`.
    pub fn from_env_with<K, V>(variables: impl IntoIterator<Item = (K, V)>) -> Result<Self>
    where
        K: Into<String>,
        V: Into<String>,
    {
        Self::default().overlay_env_with(variables)
    }

    /// As [`overlay_env`](Self::overlay_env), from variables that are given.
    ///
    /// # Errors
    ///
    /// As `overlay_env`.
    pub fn overlay_env_with<K, V>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self>
    where
        K: Into<String>,
        V: Into<String>,
    {
        let variables = variables.into_iter();
        let env = source::from_env(variables.map(|(k, v)| (k.into(), v.into())));
        self.environment = self.environment.or(env.environment);
        let mut problems = Problems::default();
        bind(&mut self, &env.pairs, Origin::Environment, &mut problems);
        self.or_all(problems, true)
    }

    /// These settings, or, when there are problems, these together with every contradiction: nobody
    /// should have to start twice to learn of the second mistake.
    fn or_all(self, mut problems: Problems, environment_known: bool) -> Result<Self> {
        if !problems.is_empty() {
            check::contradictions(&self, environment_known, &mut problems);
        }
        problems.into_result().map(|()| self)
    }
}
