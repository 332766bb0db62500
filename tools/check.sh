#!/bin/sh
# What `make check` and `make test` run. $1 is the bin directory of the virtual environment, $2 is `fast` or `whole`; the
# rest goes to pytest, which then runs once, in one process. A test that lacks something of the machine is left out, and
# the last line says what is lacking. Where CI is set, that is a failure; else CI changes nothing.
set -eu
unset PYTHONDONTWRITEBYTECODE # pytest rewrites each test file, and keeps what it wrote
bin=$1
form=$2
shift 2
"$bin/python" -m ruff check .
"$bin/python" -m ruff format --check .
"$bin/python" -m mypy

beside="tests/unit tests/behaviour tests/contract tests/crash tests/simulation tests/golden tests/fuzz tests/mutation"
workers=$(getconf _NPROCESSORS_ONLN)
failed=0
TESTS_LEFT_OUT=$(mktemp) && export TESTS_LEFT_OUT
trap 'rm -f "$TESTS_LEFT_OUT"' EXIT
trap 'exit 1' HUP INT TERM

run() { "$bin/python" -m pytest --durations=10 "$@" || { [ $? = 5 ] || failed=1; }; } # 5: no test was chosen

if [ "$form" = fast ]; then
    # shellcheck disable=SC2086
    run --numprocesses="$workers" --dist=loadfile -m "not long and not slow and not spark" "$@" tests/unit tests/behaviour tests/contract tests/golden tests/mutation
else
    # The tests say what they lack of this.
    tools/install-ops.sh || true
    tools/install-npm.sh || true
    tools/install-generators.sh "$(dirname "$bin")/generators" || true
    tools/find-java.sh >/dev/null || true
    tools/install-lake.sh "$(dirname "$bin")/lake" delta && tools/install-lake.sh "$(dirname "$bin")/iceberg" iceberg || true
    if [ $# -gt 0 ]; then
        run -m "not long" "$@"
    else
        # Two runs, so that the short tests do not wait for the long ones and the slowest of each are named. Those of real
        # processes wait half of their time, so twice as many of them run at once as there are cores.
        # shellcheck disable=SC2086
        run --numprocesses="$workers" --dist=loadfile -m "not long" $beside
        run --numprocesses="$((2 * workers))" --dist=loadfile --no-loadscope-reorder -m "not long" tests/e2e tests/history
    fi
fi
if [ -s "$TESTS_LEFT_OUT" ]; then
    lacking=$(sort -u "$TESTS_LEFT_OUT" | awk '{ printf "%s%s", sep, $0; sep = "; " }')
    [ -z "${CI:-}" ] || failed=1
    echo "!!!!! $(wc -l <"$TESTS_LEFT_OUT") tests are LEFT OUT${CI:+, which CI takes for a failure}. They need: $lacking." \
        "Where there is apt-get, \`make test\` as root installs programs; CONTRIBUTING.md tells the rest. !!!!!" >&2
fi
exit $failed
