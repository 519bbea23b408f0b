//! The `tieline` program.

fn main() {}
