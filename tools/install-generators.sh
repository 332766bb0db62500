#!/bin/sh
# Makes an environment with the generator of Python clients that a test runs on the OpenAPI document. $1 is where. Those of
# TypeScript come with what tools/install-npm.sh installs. Exit status 1 if it cannot be had; the last line says what is
# lacking.
set -u
home=$1
version=0.29.1
[ -e "$home/.installed-$version" ] && exit 0
echo "installing a generator of Python clients" >&2
python=$("$(dirname "$0")/find-python.sh") && "$python" -m venv --clear "$home" &&
    "$home/bin/python" -m pip install --quiet --disable-pip-version-check "openapi-python-client==$version" >&2 &&
    touch "$home/.installed-$version" && exit 0
echo "openapi-python-client, which pip installs: is there a network, or an index that pip is set to?" >&2
exit 1
