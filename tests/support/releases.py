"""Golden data of releases, as data directories that a service starts from, and the packages of the last one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.golden.make import KEY
from tests.support.programs import ROOT, leave_out

RELEASES = sorted((Path(__file__).parents[1] / "golden" / "releases").iterdir())
LAST = max((each.name for each in RELEASES if each.name != "next"), key=lambda name: [*map(int, name.split("."))])
"""The last release that has a number."""
UNTAGGED = {"0.1.0": "7fa1202627dd9c4bb3860c824a2ddcd49f7f4e59"}
"""The commits of releases without a tag."""
PACKAGES = ("gateway", "proto", "shardd", "supervisor")


def packages(release: str, directory: Path) -> Path:
    """Make a directory with the packages of a release. A test is left out if this checkout has not its history."""
    if not has_history(release):
        leave_out(f"a checkout with the history of release {release}")
    done = subprocess.run(["git", "archive", _commit(release), *PACKAGES], cwd=ROOT, capture_output=True, check=True)
    directory.mkdir()
    subprocess.run(["tar", "--extract"], cwd=directory, input=done.stdout, check=True)
    return directory


def has_history(release: str) -> bool:
    """Whether this checkout has the history of a release. A shallow clone and an archive of the sources have not."""
    asked = ["git", "cat-file", "-e", f"{_commit(release)}^{{commit}}"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0


def _commit(release: str) -> str:
    return UNTAGGED.get(release, f"v{release}")


def topics(*arguments: str | Path, status: int = 0, **environment: str) -> str:
    """What a command prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    command = [sys.executable, "-m", "supervisor.cli", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=180, check=False, env={**kept, **environment}
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def restored(release: str, kind: str, data: Path, key_file: Path) -> None:
    """Make a data directory from golden data of this kind."""
    golden = RELEASES[0].parent / release / kind
    if kind == "data":
        shutil.copytree(golden, data)
    elif kind == "backup":
        topics("restore", golden, data)
    elif kind == "bucket":
        topics("restore", "--from", golden.as_uri(), data)
    else:
        key_file.write_text(KEY)
        topics("restore", "--from", golden.as_uri(), data, TOPICS_BUCKET_KEY_FILE=str(key_file))


def expected(release: str, kind: str) -> dict[str, Any]:
    """`tests.golden.make.view` of a service that was started from it."""
    views = json.loads((RELEASES[0].parent / release / "expected.json").read_text())
    found: dict[str, Any] = views["data" if kind == "backup" else kind]
    return found


def differences(wanted: Any, found: Any, at: str = "") -> list[str]:
    """Where `found` lacks something of `wanted`. Later releases may answer more fields."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [each for name in wanted for each in differences(wanted[name], found.get(name), f"{at}.{name}")]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = zip(wanted, found, strict=True)
        return [each for n, pair in enumerate(pairs) for each in differences(*pair, f"{at}[{n}]")]
    return [] if wanted == found else [f"{at}: {found!r}, not {wanted!r}"]
