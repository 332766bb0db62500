#!/bin/sh
# Installs what building and testing the TypeScript client needs, as its lock file says, where it is not there yet.
# Exit status 1 if there is no Node 20 or later, or the packages cannot be had; the last line says what is lacking.
set -u
cd "$(dirname "$0")/../packages/topics-client-ts" || exit 1
if ! command -v npm >/dev/null 2>&1 || ! node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null; then
    echo "npm and Node 20 or later, for the TypeScript client" >&2
    exit 1
fi
[ node_modules/.installed -nt package-lock.json ] && exit 0
echo "installing what the TypeScript client needs" >&2
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2 && touch node_modules/.installed && exit 0
echo "packages of npm, for the TypeScript client: is there a network, or a registry that npm is set to?" >&2
exit 1
