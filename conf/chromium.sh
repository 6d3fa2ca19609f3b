#!/usr/bin/env bash
# Sees that there is a Chromium without windows, in which tests look at the report page. Where there is none, root on
# Debian gets it from apt-get; anybody else is told to install it. (On Ubuntu the package is an empty one that asks for
# snap, which containers do not have.)
set -euo pipefail

programs=(chromium-headless-shell chromium google-chrome)

have_chromium() {
    local name
    for name in "${programs[@]}"; do
        if type -P "$name" >/dev/null; then return 0; fi
    done
    return 1
}

install_chromium() {
    local name
    if ((EUID != 0)) || ! type -P apt-get >/dev/null; then return 1; fi
    if [[ "$(. /etc/os-release && echo "${ID:-}")" == ubuntu ]]; then return 1; fi
    echo "no Chromium found: installing one with apt-get" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update >&2
    for name in chromium-headless-shell chromium; do # older releases have only the second, which is larger
        if apt-get install --yes --no-install-recommends "$name" >&2; then return 0; fi
    done
    return 1
}

have_chromium || install_chromium || {
    echo "the tests of the report page need a browser, one of ${programs[*]}: install it" >&2
    exit 1
}
