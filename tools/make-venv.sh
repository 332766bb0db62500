#!/bin/sh
# Makes the virtual environment $1 that `make` installs into. One that is there is used as it is, whatever made it; nothing is
# removed from it. Exit status 1 if something else is there.
set -u
directory=$1
if [ ! -e "$directory" ]; then
    python=$("$(dirname "$0")/find-python.sh") || exit 1
    echo "making $directory with $python"
    exec "$python" -m venv "$directory"
fi
if "$directory/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11) or sys.prefix == sys.base_prefix)' 2>/dev/null; then
    echo "using $directory, which is there"
    exit 0
fi
echo "$directory is there, and is no virtual environment with Python 3.11 or later and pip. Remove it, or name another: make VENV=DIRECTORY ..." >&2
exit 1
