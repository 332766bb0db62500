"""Fault dials, loaded first by every process of a service under test; the test turns them from outside.

`tests.support.dials` writes the dials' file; its path is in `PYTHONTOPICSDIALS`, a name that a supervisor passes on to
its children. This module patches the calls that read the wall clock and those that sync or write a file. It runs before
the product's imports, so names imported from those modules are patched too. Without the variable nothing changes.
"""

import os

_path = os.environ.get("PYTHONTOPICSDIALS")
if _path:
    import errno
    import mmap
    import struct
    import time

    _layout = struct.Struct("<4d")
    with open(_path, "rb") as _file:
        _dials = mmap.mmap(_file.fileno(), _layout.size, prot=mmap.PROT_READ)
    _time, _time_ns, _gettime, _gettime_ns = time.time, time.time_ns, time.clock_gettime, time.clock_gettime_ns
    _fdatasync, _fsync, _sleep = os.fdatasync, os.fsync, time.sleep

    def _ahead_s() -> float:
        return float(_layout.unpack_from(_dials)[0])

    def _clock_gettime(clock: int) -> float:
        return _gettime(clock) + (_ahead_s() if clock == time.CLOCK_REALTIME else 0.0)

    def _clock_gettime_ns(clock: int) -> int:
        return _gettime_ns(clock) + (int(_ahead_s() * 1e9) if clock == time.CLOCK_REALTIME else 0)

    def _before_sync() -> None:
        _, delay_s, failing, _ = _layout.unpack_from(_dials)
        if delay_s:
            _sleep(delay_s)
        if failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _slow_fdatasync(descriptor: int) -> None:
        _before_sync()
        _fdatasync(descriptor)

    def _slow_fsync(descriptor: int) -> None:
        _before_sync()
        _fsync(descriptor)

    time.time = lambda: _time() + _ahead_s()
    time.time_ns = lambda: _time_ns() + int(_ahead_s() * 1e9)
    time.clock_gettime, time.clock_gettime_ns = _clock_gettime, _clock_gettime_ns
    os.fdatasync, os.fsync = _slow_fdatasync, _slow_fsync
