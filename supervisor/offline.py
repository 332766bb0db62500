"""Commands on the files of a stopped service. The work is done by a process of the package that owns the files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from supervisor.child import python
from supervisor.datadir import DataDir


def results(command: str, data_dir: Path, shards: int | None) -> Iterator[dict[str, Any]]:
    """What `verify` or `reshard` says, line by line; the last one is `{"kind": "exit", "status": n}`.

    `shards` None means as many as there are. Raises `DataDirError` if the directory is in use or none.
    """
    data = DataDir.locked(data_dir)
    try:
        arguments = [*python("shardd.offline"), command, str(data.path), str(shards or data.shards)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, pass_fds=(data.lock_fd,), text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                yield json.loads(line)
        yield {"kind": "exit", "status": process.returncode}
    finally:
        data.close()
