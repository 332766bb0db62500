#!/bin/sh
# Makes an environment with the generator of Python clients that a test runs on the OpenAPI document. $1 is where. Those of
# TypeScript come with what tools/install-npm.sh installs. Exit status 1 if it cannot be had; the last line says what is
# lacking.
set -u
home=$1
here=$(dirname "$0")
lock="$here/../locks/generators.lock"
stamp="$home/.installed-$(sha256sum "$lock" | cut -c1-16)"
[ -e "$stamp" ] && exit 0
echo "installing a generator of Python clients" >&2
python=$("$here/find-python.sh") && "$python" -m venv --clear "$home" &&
    "$here/pip-install.sh" "$home/bin/python" --require-hashes --requirement "$lock" >&2 &&
    touch "$stamp" && exit 0
echo "openapi-python-client, which pip installs: is there a network, or an index that pip is set to?" >&2
exit 1
