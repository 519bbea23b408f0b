//! The `tieline` program.

fn main() -> std::process::ExitCode {
    tieline::cli::run(std::env::args_os())
}
