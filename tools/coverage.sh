#!/bin/sh
# What `make coverage` runs: tests, of which each process notes the lines and branches that it executes, and a table of
# the modules that have others. $1 is the bin directory of the virtual environment; the rest goes to pytest, in place of
# the tests that start no service. A process that is killed notes nothing.
set -u
bin=$1
shift
[ $# -gt 0 ] || set -- tests/unit tests/behaviour tests/contract tests/simulation tests/golden
data=$(mktemp -d) || exit 1
trap 'rm -rf "$data"' EXIT
trap 'exit 1' HUP INT TERM
export PYTHONCOVERAGEDATA="$data/data"
PYTHONCOVERAGE=$PWD/pyproject.toml "$bin/python" -m pytest --numprocesses="$(getconf _NPROCESSORS_ONLN)" \
    --dist=loadfile -m "not long and not spark" "$@"
status=$?
"$bin/python" -m coverage combine --quiet "$data" && "$bin/python" -m coverage report || status=1
exit $status
