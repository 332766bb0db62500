#!/bin/sh
# What `make check` and `make test` run. $1 is the bin directory of the virtual environment, $2 is `fast` or `whole`; the
# rest goes to pytest, which then runs once, in one process.
set -eu
bin=$1
form=$2
shift 2
"$bin/python" -m ruff check .
"$bin/python" -m ruff format --check .
"$bin/python" -m mypy

beside="tests/unit tests/crash tests/simulation tests/golden tests/fuzz"
workers=$(getconf _NPROCESSORS_ONLN)
failed=0

run() { "$bin/python" -m pytest --durations=10 "$@" || { [ $? = 5 ] || failed=1; }; } # 5: no test was chosen

if [ "$form" = fast ]; then
    # shellcheck disable=SC2086
    run --numprocesses="$workers" --dist=loadfile -m "not long and not slow and not spark" "$@" tests/unit tests/golden
    exit $failed
fi

tools/install-ops.sh || true # the tests that need them say so
tools/install-npm.sh || true
tools/install-lake.sh "$(dirname "$bin")/lake" delta && tools/install-lake.sh "$(dirname "$bin")/iceberg" iceberg || true
chosen="not long"
skipped=""
if java_home=$(tools/find-java.sh); then
    export JAVA_HOME="$java_home"
else
    chosen="$chosen and not spark"
    skipped="!!!!! The Spark tests are SKIPPED: they need Java >= 17. See above for how to get it, then run this again. !!!!!"
    echo "$skipped" >&2
fi
if [ $# -gt 0 ]; then
    run -m "$chosen" "$@"
else
    # Two runs, so that the short tests do not wait for the long ones and the slowest of each are named.
    # shellcheck disable=SC2086
    run --numprocesses="$workers" --dist=loadfile -m "$chosen" $beside
    run --numprocesses="$workers" --dist=loadfile -m "$chosen" tests/e2e
fi
[ -z "$skipped" ] || echo "$skipped" >&2
exit $failed
