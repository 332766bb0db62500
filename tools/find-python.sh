#!/bin/sh
# Prints the first Python that can run the project and create a virtual environment. If $PYTHON is set, only it is tried.
set -u
tried=""
for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3.14 python3 python}; do
    path=$(command -v "$candidate" 2>/dev/null) || continue
    # A version manager's shim may exist for a version that is not installed, so it must be run to find out.
    version=$("$path" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if ! "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        tried="$tried $candidate is $version;"
        continue
    fi
    if "$path" -c 'import venv, ensurepip' 2>/dev/null; then
        echo "$path"
        exit 0
    fi
    tried="$tried $candidate is $version but lacks venv or ensurepip (Debian, Ubuntu: apt-get install python$version-venv);"
done
{
    echo "No usable Python >= 3.11 found.${tried:+ Tried:$tried}"
    echo "Install Python 3.11 or later with its venv module, or name one: make PYTHON=/path/to/python3 ..."
} >&2
exit 1
