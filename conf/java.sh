#!/usr/bin/env bash
# Prints the home of a Java that Spark 4 runs on, for JAVA_HOME. Looks at JAVA_HOME, at java on the PATH, and where
# Linux distributions keep theirs. Where there is none, root on Debian or Ubuntu gets one from apt-get; anybody else is
# told what to install.
set -euo pipefail

home_if_fit() { # home_if_fit JAVA: its home, if its version is one that Spark 4 supports
    local settings
    settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    grep -Eq '^ *java\.specification\.version = (17|21|25)$' <<<"$settings" || return 1
    sed -n 's/^ *java\.home = //p' <<<"$settings"
}

find_java() {
    local java
    for java in "${JAVA_HOME:-/none}/bin/java" "$(type -P java || true)" /usr/lib/jvm/*/bin/java; do
        if [[ -x $java ]] && home_if_fit "$java"; then return 0; fi
        if [[ -n ${JAVA_HOME:-} && $java == "$JAVA_HOME/bin/java" ]]; then
            echo "JAVA_HOME=$JAVA_HOME is not Java 17, 21 or 25: looking elsewhere" >&2
        fi
    done
    return 1
}

install_java() {
    if ((EUID != 0)) || ! type -P apt-get >/dev/null; then return 1; fi
    echo "no Java 17, 21 or 25 found: installing one with apt-get" >&2
    export DEBIAN_FRONTEND=noninteractive
    # Debian 12 and Ubuntu have 17, Debian 13 has 21.
    apt-get update >&2 && { apt-get install --yes --no-install-recommends openjdk-17-jre-headless >&2 ||
        apt-get install --yes --no-install-recommends openjdk-21-jre-headless >&2; }
}

find_java || { install_java && find_java; } || {
    echo "Spark needs Java 17, 21 or 25: install openjdk-17-jre-headless or the like, or set JAVA_HOME" >&2
    exit 1
}
