#!/usr/bin/env bash
# Installs the pinned gRPC library for Python into tests/support/grpc/packages, and builds the application with the pinned gRPC
# library of Go into target/grpc. Does nothing when they are there for this Python and this Go.
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

go=${GO:-$(command -v go || echo /usr/local/go/bin/go)}
target=$here/../../../target/grpc
required=$(sed -n 's/^go //p' "$here/go/go.mod")
version=$(GOTOOLCHAIN=local "$go" env GOVERSION 2>/dev/null || true)
if [ -z "$version" ] || ! printf '%s\n' "$required" "${version#go}" | sort --version-sort --check=quiet; then
    echo "Without Go $required or later, the tests with the gRPC library of Go are skipped. Install it, or set GO=/path/to/bin/go." >&2
    rm -rf "$target"
    exit 0
fi
wanted=$(echo "$version"; cat "$here/install.sh" "$here/../go-env" "$here"/go/* | sha256sum)
if [ "$(cat "$target/installed" 2>/dev/null)" != "$wanted" ]; then
    mkdir -p "$target"
    rm -f "$target/installed"
    SECONDS=0
    (cd "$here/go" && source "$here/../go-env" && "$go" build -ldflags "-s -w" -o "$target/app" .)
    echo "built the application with the gRPC library of Go in $SECONDS s"
    echo "$wanted" >"$target/installed"
fi
