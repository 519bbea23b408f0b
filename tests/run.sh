#!/bin/sh
# Runs all tests: installs the test relays where they are missing, then `cargo test` with the
# arguments given.
set -eu

cd -- "$(dirname -- "$0")/.."
tests/install-relays.sh
# Where there is a browser, the test that needs one must not skip.
if command -v chromium >/dev/null; then
    export TIELINE_TEST_CHROMIUM="${TIELINE_TEST_CHROMIUM:-$(command -v chromium)}"
fi
# Most of these tests wait for relays and time-outs, not for a core.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-6}"
exec cargo test "$@"
