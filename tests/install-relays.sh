#!/bin/sh
# Installs the test relay that runs as its own process: `nostr-relay` from PyPI, a real relay
# without NIP-77. Run it again as often as you like; it does nothing when all is there.
#
#   TIELINE_TEST_VENV   where to (default: target/test-relays beside Cargo.toml)
set -eu

version=1.14
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
venv=${TIELINE_TEST_VENV:-$root/target/test-relays}

# The version is asked of the venv itself: an installation that was interrupted has none, or
# cannot import what it needs.
installed() {
    [ "$("$venv/bin/python" -c 'import nostr_relay.web; print(nostr_relay.__version__)' 2>/dev/null)" = "$version" ]
}

if installed; then
    echo "nostr-relay $version is in $venv"
    exit 0
fi

python3 -m venv --clear "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check "nostr-relay==$version"
if ! installed; then
    echo "nostr-relay $version was installed in $venv and does not start" >&2
    exit 1
fi
echo "installed nostr-relay $version in $venv"
