"""The dials of a running service: its wall clock and its disk, set from the test's process.

They work through `faults/sitecustomize.py`, which the service's processes load at their start.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

_LAYOUT = struct.Struct("<4d")
_FAULTS = Path(__file__).parent / "faults"


class Dials:
    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_LAYOUT.size))
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._shared = mmap.mmap(descriptor, _LAYOUT.size)
        finally:
            os.close(descriptor)
        self.environment = {"PYTHONPATH": str(_FAULTS), "PYTHONTOPICSDIALS": str(path)}
        """The environment of the service."""

    def turn(self, *, clock_ahead_s: float = 0.0, sync_delay_s: float = 0.0, sync_fails: bool = False) -> None:
        """Set all dials. A dial that is not named is as on a healthy machine."""
        _LAYOUT.pack_into(self._shared, 0, clock_ahead_s, sync_delay_s, float(sync_fails), 0.0)
