#!/bin/sh
# Runs all tests: installs the test relays where they are missing, then `cargo test` with the
# arguments given.
set -eu

cd -- "$(dirname -- "$0")/.."
tests/install-relays.sh
exec cargo test "$@"
