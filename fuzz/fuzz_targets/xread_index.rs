#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamlane::fuzzing::xread_index(data));
