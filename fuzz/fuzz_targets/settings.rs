//! Whatever a file or the environment holds, loading and checking answer without a panic, and what
//! they print is one line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use streamlane::Settings;

fuzz_target!(|text: &str| {
    let variables = text.lines().filter_map(|line| line.split_once('='));
    let variables = variables.map(|(name, value)| (format!("Streams__{name}"), value));
    for loaded in [
        Settings::from_json(text),
        Settings::from_env_with(variables),
    ] {
        let Ok(settings) = loaded else { continue };
        let _ = settings.check();
        assert!(!settings.summary().contains('\n'));
    }
});
