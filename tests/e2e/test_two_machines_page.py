"""Claims about docs/howto/two-machines.md: its commands, as printed, lead from empty directories to a takeover."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from tests.support.bucket import S3Server
from tests.support.doc_blocks import blocks, run
from tests.support.network import NetworkError, network
from tests.support.programs import leave_out

PAGE = "docs/howto/two-machines.md"
NAMES = {"10.0.0.1": "one", "10.0.0.2": "two"}


def test_from_empty_directories_to_a_takeover_as_printed(tmp_path: Path) -> None:
    printed = blocks(PAGE)
    assert sum(not line.startswith("#") for block in printed for line in _commands(block.text)) < 10 + len(printed)
    with ExitStack() as stack:
        try:
            net = stack.enter_context(network("one", "two"))
        except NetworkError as error:
            leave_out(f"the right to make networks ({error})")
        with net.inside("bucket"):
            bucket = stack.enter_context(S3Server("my-bucket", host="198.18.1.1"))
        addresses = {address: net.address(name) for address, name in NAMES.items()}
        addresses["https://s3.eu-central-1.amazonaws.com"] = bucket.endpoint
        addresses["eu-central-1"] = "us-east-1"
        places = {name: tmp_path / name for name in (*net.names, "clients")}
        for place in places.values():
            place.mkdir()
        stack.callback(end, places.values())
        said = []
        for block in printed:
            where = block.text.partition("\n")[0].rpartition(" ")[2]
            for name in net.names if where == "machines" else [NAMES.get(where, "clients")]:
                said.append(run(block, places[name], addresses, net.spaces[name].enter))
    told = "".join(said)
    assert '"it lasts"' in said[-2]
    assert f"http://{addresses['10.0.0.1']}:4000 holds the shards" in told
    assert f"http://{addresses['10.0.0.2']}:4000 holds the shards" in said[-1]


def _commands(text: str) -> list[str]:
    """The lines of a block without the text of its here-documents."""
    before, _, rest = text.partition("<<'END'\n")
    return (before + rest.partition("END\n")[2]).splitlines()


def end(places: Iterable[Path]) -> None:
    for place in places:
        if (place / "topics.pid").exists():
            try:
                os.kill(int((place / "topics.pid").read_text()), signal.SIGKILL)
            except ProcessLookupError:
                pass
