"""Bar 11: upgrades and downgrades. The service is stopped in order, and started with the packages of the last release,
or with those of this one, in turn. It begins with golden data of a release, which is there in the end.

    upgrade      this release starts from what the last one has left
    downgrade    the last release starts from what this one has left; or it refuses, changes nothing, and this one
                 starts again

Both releases answer the same clients, so all that they ask is of the older one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections import Counter
from pathlib import Path

from tests.golden.make import view
from tests.history.bar import BACK_S, Bar
from tests.history.clients import Crowd, Mixed
from tests.history.recording import Client, Recording
from tests.support.releases import LAST, RELEASES, differences, expected, packages
from tests.support.service import Service, until

REFUSAL = re.compile(r"this release (?:reads|knows|speaks)")
ORDERLY = 0


class Upgrades(Bar):
    fault = "other"
    rest_s = (2.0, 10.0)

    def __init__(self, directory: Path, seed: int, scale: float) -> None:
        super().__init__(directory, seed, scale)
        self._packages = packages(LAST, directory / "last")
        self._golden = self.rng.choice(RELEASES)
        self._is_last = False
        """Whether the last release runs."""
        self._ours = ""
        """The PYTHONPATH of this release."""
        self._told: Counter[str] = Counter()
        self._running: Service | None = None

    def service(self, **environment: str) -> Service:
        service = super().service(**environment, PYTHONSAFEPATH="1")  # without it, the present directory comes first
        shutil.copytree(self._golden / "data", service.data_dir)
        self._ours = service.environment.get("PYTHONPATH", "")
        self._use(service, last=self._golden.name != "next")
        return service

    def begin(self, service: Service) -> None:
        super().begin(service)
        self._running = service

    def crowd(self, service: Service, recording: Recording, clients: int) -> list[Crowd]:
        return [Mixed(service, recording, f"c{n}", self.seed) for n in range(clients)]

    def strike(self, service: Service) -> tuple[str, float]:
        return "all", self._exchange(service)

    def _use(self, service: Service, *, last: bool) -> None:
        first = [str(self._packages)] if last else []
        service.environment["PYTHONPATH"] = os.pathsep.join([*first, *filter(None, [self._ours])])
        self._is_last = last

    def _exchange(self, service: Service) -> float:
        """Start the other release. Returns when the one before had ended."""
        status = service.stop()
        assert status == ORDERLY, f"a service that was asked to end did so with status {status}"
        lifted, said = time.monotonic(), len(service.log_text())
        before = {} if self._is_last else _digests(service.data_dir)
        self._use(service, last=not self._is_last)
        service.start(wait=False)

        def decided() -> str:
            if service.is_ready():
                return "downgrade" if self._is_last else "upgrade"
            assert service.process is not None
            ended = service.process.poll() is not None
            return "refusal" if ended or REFUSAL.search(service.log_text(), said) else ""

        try:
            told = until(decided, "the other release to start or to refuse", BACK_S)
        except AssertionError as error:
            raise AssertionError(f"{error}{service.log_tail()}") from None
        self._told[told] += 1
        if told == "refusal":
            assert self._is_last, f"this release refuses what the last one has left{service.log_tail()}"
            assert REFUSAL.search(service.log_text(), said), f"no sentence says why{service.log_tail()}"
            _end(service)
            after = _digests(service.data_dir)
            changed = [name for name, digest in before.items() if after.get(name) != digest]
            assert not changed, f"the last release refused files and changed them: {changed}"
            self._use(service, last=False)
            service.start()
        return lifted

    def finish(self, client: Client, path: Path) -> None:
        service = self._running
        assert service is not None
        if self._is_last:
            self._exchange(service)
        super().finish(client, path)
        wanted, found = expected(self._golden.name, "data")["topics"], view(service)["topics"]
        assert differences(wanted, found) == []

    def happened(self, recording: Recording) -> dict[str, int]:
        told = self._told
        return {"upgrades": told["upgrade"], "downgrades": told["downgrade"] + told["refusal"]}

    def figures(self) -> str:
        told = ", ".join(f"{count} {kind}s" for kind, count in self._told.items())
        return f"releases: data of {self._golden.name}; {told}"


def _end(service: Service) -> None:
    """Kill what is left of a service."""
    assert service.process is not None
    if service.process.poll() is None:
        service.kill_group()
    else:
        service.wait_exit()


def _digests(directory: Path) -> dict[str, bytes]:
    """Of all files but those that only keep room."""
    found = {}
    for path in directory.rglob("*"):
        if path.is_file() and not path.name.startswith("ballast-"):
            with path.open("rb") as file:
                found[str(path.relative_to(directory))] = hashlib.file_digest(file, "blake2b").digest()
    return found
