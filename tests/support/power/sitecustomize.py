"""Has each process of a service load the trace of `trace.c`. A supervisor passes on variables that begin with PYTHON,
and LD_PRELOAD is none of them: so the process starts itself again with it."""

import os
import sys

_library = os.environ.get("PYTHONPOWER_LIBRARY")
if _library and os.environ.get("LD_PRELOAD") != _library:
    os.execve(sys.executable, sys.orig_argv, {**os.environ, "LD_PRELOAD": _library})
if os.environ.get("PYTHONPOWER_NEVER_SYNC"):  # of files: a broken product, to see that a cut finds it
    os.fdatasync = lambda descriptor: None
