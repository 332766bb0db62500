#!/bin/sh
# Says which packages of lock files have a known vulnerability: tools/audit.sh BIN LOCK... where BIN has pip-audit. It
# installs nothing. Exit status 0 if none has one, 1 if one has, 3 if that cannot be known, because the index that knows
# them does not answer, or lacks a package: a mirror may have files and know nothing of them.
set -u
bin=$1
shift
found=$(mktemp)
trap 'rm -f "$found"' EXIT
trap 'exit 3' HUP INT TERM
status=0
for lock; do
    : >"$found" # pip-audit ends with 1 for a vulnerability and for an error, and writes here only if it had all answers
    # --strict: else it passes over what the index does not know
    if "$bin/pip-audit" --strict --disable-pip --require-hashes --progress-spinner=off --format=columns \
        --output="$found" --requirement "$lock"; then
        echo "$lock: no known vulnerability"
    elif [ -s "$found" ]; then
        echo "$lock:" && cat "$found"
        status=1
    else
        echo "NOT AUDITED: $lock. pip-audit asks PyPI for known vulnerabilities: is there a network, without a mirror?" >&2
        exit 3
    fi
done
exit $status
