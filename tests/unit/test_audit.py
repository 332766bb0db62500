"""tools/audit.sh: a package with a known vulnerability is an error; an index that does not answer is another one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/audit.sh"
FOUND = """
passed_over=true
while [ $# -gt 0 ]; do
    case $1 in --output=*) to=${1#--output=} ;; --requirement) lock=$2 ;; --strict) passed_over=false ;; esac
    shift
done
case $lock in *weak*) echo "h2 4.1.0 CVE-1" >"$to"; exit 1 ;; *away*) exit 1 ;; *unknown*) $passed_over ;; esac
"""


def audit(directory: Path, *locks: str) -> subprocess.CompletedProcess[str]:
    """Run the tool with a pip-audit that knows what a lock is by its name."""
    program = directory / "pip-audit"
    program.write_text(f"#!/bin/sh\n{FOUND}")
    program.chmod(0o755)
    return subprocess.run([TOOL, directory, *locks], capture_output=True, text=True, check=False)


def test_without_vulnerabilities_it_says_so_of_each_lock(tmp_path: Path) -> None:
    done = audit(tmp_path, "a.lock", "b.lock")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "a.lock: no known vulnerability\nb.lock: no known vulnerability\n"


def test_a_vulnerability_is_shown_and_all_locks_are_asked_for(tmp_path: Path) -> None:
    done = audit(tmp_path, "weak.lock", "b.lock")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "weak.lock:\nh2 4.1.0 CVE-1\nb.lock: no known vulnerability\n"


@pytest.mark.parametrize("lock", ["away.lock", "unknown.lock"])
@pytest.mark.parametrize("before", ["a.lock", "weak.lock"])
def test_an_index_that_does_not_answer_or_lacks_a_package_is_no_good_news(
    tmp_path: Path, before: str, lock: str
) -> None:
    done = audit(tmp_path, before, lock)
    assert done.returncode == 3
    assert done.stderr.startswith(f"NOT AUDITED: {lock}. ")
    assert "is there a network, without a mirror?" in done.stderr
