#!/bin/sh
# Runs all checks of `make test`. $1 is the bin directory of the virtual environment; other arguments go to pytest.
set -eu
bin=$1
shift
"$bin/python" -m ruff check .
"$bin/python" -m ruff format --check .
"$bin/python" -m mypy
tools/install-ops.sh || true # tests that need a missing program report it
if java_home=$(tools/find-java.sh); then
    JAVA_HOME=$java_home exec "$bin/python" -m pytest -m "not long" "$@"
fi
skipped="!!!!! The Spark tests are SKIPPED: they need Java >= 17. See above for how to get it, then run this again. !!!!!"
echo "$skipped" >&2
"$bin/python" -m pytest -m "not long and not spark" "$@"
echo "$skipped" >&2
