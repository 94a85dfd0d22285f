#!/usr/bin/env bash
# Installs the pinned gRPC library for Python into tests/support/grpc/packages. Does nothing when it is there for this Python.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

wanted=$(python3 --version; sha256sum <"$here/requirements.txt")
if [ "$(cat "$here/packages/installed" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$here/packages"
    # As root, pip warns of conflicts with the system's packages, which this directory does not have.
    python3 -m pip install --quiet --no-deps --only-binary=:all: --require-hashes --root-user-action=ignore \
        --requirement "$here/requirements.txt" --target "$here/packages"
    echo "$wanted" >"$here/packages/installed"
fi
