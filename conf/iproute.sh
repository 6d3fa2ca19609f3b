#!/usr/bin/env bash
# Sees that there is iproute2, with which tests/hosts builds its hosts. Where there is none, root on Debian or Ubuntu
# gets it from apt-get; anybody else is told to install it.
set -euo pipefail

install_iproute() {
    if ((EUID != 0)) || ! type -P apt-get >/dev/null; then return 1; fi
    echo "no ip found: installing iproute2 with apt-get" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update >&2 && apt-get install --yes --no-install-recommends iproute2 >&2
}

type -P ip >/dev/null || install_iproute || {
    echo "the tests on several hosts need iproute2: install it" >&2
    exit 1
}
