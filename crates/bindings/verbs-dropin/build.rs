//! Gives the linker the version script, by which the symbols get libibverbs' versions.

use std::path::PathBuf;

fn main() {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).expect("cargo says where the crate is");
    let versions = folder.join("versions.map");
    println!("cargo::rerun-if-changed={}", versions.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", versions.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liblonghaul_verbs.so");
}
