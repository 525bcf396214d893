//! The migrations are compiled in, and cargo does not see by itself that a file was added.

fn main() {
    println!("cargo::rerun-if-changed=../schema/migrations");
}
