"""Coverage-guided fuzzing of one parser: `python -m tests.fuzz.run walrus|rog [options of libFuzzer]`.

libFuzzer writes new inputs to the first directory named. Name `tests/fuzz/corpus/<target>` second to start from it.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["proto"]):
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
