#!/usr/bin/env bash
# Installs what the tests of the web console need into target/browser: Chromium (a Debian package) and the pinned axe-core (npm). Does
# nothing when all is there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=$here/../../../target/browser

missing=()
command -v chromium >/dev/null || missing+=(chromium fonts-liberation)
command -v npm >/dev/null || missing+=(npm)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    else
        echo "missing ${missing[*]}: the tests of the web console need them" >&2
        exit 1
    fi
fi

mkdir -p "$target"
if ! cmp -s "$here/package-lock.json" "$target/package-lock.json" || [ ! -f "$target/node_modules/axe-core/axe.min.js" ]; then
    cp "$here/package.json" "$here/package-lock.json" "$target"
    npm ci --prefix "$target" --ignore-scripts --no-audit --no-fund --silent
fi
ln -sfn "$(command -v chromium)" "$target/chromium"
