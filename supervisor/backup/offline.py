"""Commands on the files of a stopped service. The work is done by a process of the package that owns the files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from supervisor.process.child import python
from supervisor.process.datadir import DataDir


def results(
    command: str, data_dir: Path, limits: dict[str, Any], *, shards: int | None = None, **job: Any
) -> Iterator[dict[str, Any]]:
    """What `verify`, `reshard` or `cut` says, line by line; the last one is `{"kind": "exit", "status": n}`.

    `shards` None means as many as there are; `job` is what the command needs besides. Raises `DataDirError` if the
    directory is in use or none.
    """
    data = DataDir.locked(data_dir)
    try:
        arguments = [*python("shardd.offline"), command, str(data.path)]
        with subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=data.lock_fds, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            json.dump({"shards": shards or data.shards, "limits": limits, **job}, process.stdin)
            process.stdin.close()
            for line in process.stdout:
                yield json.loads(line)
        yield {"kind": "exit", "status": process.returncode}
    finally:
        data.close()
