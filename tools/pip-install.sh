#!/bin/sh
# Installs packages with the Python $1; the rest goes to `pip install`. Exit status 1 and an explanation if they cannot be had.
set -u
python=$1
shift
"$python" -m pip install --quiet --disable-pip-version-check "$@" && exit 0
echo "The packages cannot be had. pip takes them from PyPI, or from where PIP_INDEX_URL, PIP_FIND_LINKS or its configuration say: is there a network?" >&2
exit 1
