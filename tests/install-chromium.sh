#!/bin/sh
# Installs Chromium, in which the page for people is tested, where root and apt may do so. Where
# they may not, the test skips, and this says so.
set -eu

if command -v chromium >/dev/null; then
    echo "chromium is installed"
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "NOT TESTED: the page in a browser: install chromium, as root with apt this is done here"
    exit 0
fi

export DEBIAN_FRONTEND=noninteractive
apt="timeout 240 apt-get -q -y -o Acquire::Retries=2 -o Dpkg::Use-Pty=0"
$apt update >/dev/null
$apt install --no-install-recommends chromium >/dev/null
command -v chromium
