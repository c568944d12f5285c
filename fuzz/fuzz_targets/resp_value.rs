#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| streamlane::fuzzing::resp_value(data));
