//! Links hiredis when it is wanted. What its replies look like in memory depends on its version.

use std::{env, fs};

const HEADER: &str = "/usr/include/hiredis/hiredis.h";

fn main() {
    println!("cargo::rustc-check-cfg=cfg(hiredis_1)");
    println!("cargo::rerun-if-changed={HEADER}");
    if env::var_os("CARGO_FEATURE_HIREDIS").is_none() {
        return;
    }
    let header = fs::read_to_string(HEADER)
        .unwrap_or_else(|e| panic!("{HEADER}: {e}: install the package libhiredis-dev"));
    let number = |name: &str| -> u32 {
        let mut lines = header
            .lines()
            .filter_map(|l| l.strip_prefix("#define HIREDIS_"));
        let text = lines.find_map(|l| l.strip_prefix(name)).unwrap_or_default();
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{HEADER} does not tell its {name}"))
    };
    let (major, minor, patch) = (number("MAJOR"), number("MINOR"), number("PATCH"));
    if major > 0 {
        println!("cargo::rustc-cfg=hiredis_1");
    }
    println!("cargo::rustc-env=HIREDIS_VERSION={major}.{minor}.{patch}");
    println!("cargo::rustc-link-lib=hiredis");
}
