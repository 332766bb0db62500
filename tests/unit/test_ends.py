"""Programs that start services end them when they are ended themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import ROOT, UNMEASURED

SERVICE = "exec 3>{fifo}; echo started >&3; exec sleep 600"
"""A service that never gets ready. It has the pipe open for as long as it runs."""
BENCHMARK = """
import sys
from pathlib import Path
sys.path.insert(0, "bench")
from server import Server

class Starting(Server):
    told = False
    def _is_ready(self):
        if not self.told:
            self.told = True
            Path({fifo!r}).write_text("waiting\\n")
        return super()._is_ready()

with Starting(Path({folder!r}) / "data", 1, Path({folder!r})):
    pass
"""
PROVE = """
import sys
from pathlib import Path
from tests.history import bars, prove
from tests.support.service import Service

class Starting(Service):
    def wait_ready(self, timeout_s=600):
        Path({fifo!r}).write_text("waiting\\n")
        super().wait_ready(timeout_s)

def run(directory, *_, **__):
    with Starting(directory, enter=["sh", "-c", {service!r}]):
        pass

bars.run = run
if __name__ == "__main__":
    sys.exit(prove.main())
"""
PROGRAMS: dict[str, tuple[str, list[str]]] = {
    "a benchmark": (BENCHMARK, []),
    "prove": (PROVE, ["--bar", "1"]),
    "prove of several schedules": (PROVE, ["--bar", "13"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_ended_while_its_service_starts_ends_it(
    tmp_path: Path, name: str, number: signal.Signals
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    starts = SERVICE.format(fifo=fifo)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{starts}\n")
    python.chmod(0o755)
    text, arguments = PROGRAMS[name]
    program = tmp_path / "program.py"
    program.write_text(text.format(folder=str(tmp_path), fifo=str(fifo), service=starts))
    environment = UNMEASURED | {"PYTHONPATH": f"{ROOT}:{ROOT}/packages/topics-history", "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, str(program), *arguments], cwd=ROOT, env=environment) as process:
        open_until_both = os.open(fifo, os.O_RDWR)
        with fifo.open() as service:
            assert {service.readline(), service.readline()} == {"started\n", "waiting\n"}
            os.close(open_until_both)
            process.send_signal(number)
            assert process.wait(60) == 128 + number
            assert service.read() == "", "the service outlives the program"
