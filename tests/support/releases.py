"""Golden data of releases, as data directories that a service starts from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.golden.make import KEY

RELEASES = sorted((Path(__file__).parents[1] / "golden" / "releases").iterdir())


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
