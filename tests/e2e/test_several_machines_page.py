"""Claims about docs/howto/several-machines.md: its commands, as printed, lead from empty directories through a loss."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.e2e.test_two_machines_page import end
from tests.support.bucket import S3Server
from tests.support.doc_blocks import blocks, run
from tests.support.network import NetworkError, network
from tests.support.programs import leave_out

PAGE = "docs/howto/several-machines.md"
NAMES = {"10.0.0.1": "one", "10.0.0.2": "two", "10.0.0.3": "three"}


def test_from_empty_directories_through_the_loss_of_a_machine_as_printed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        try:
            net = stack.enter_context(network(*NAMES.values()))
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
        said: dict[str, list[str]] = {"anywhere": []}
        for block in blocks(PAGE):
            where = block.text.partition("\n")[0].removeprefix("# on ").removeprefix("# ")
            for name in net.names if where == "all machines" else [NAMES.get(where, "clients")]:
                said.setdefault(where, []).append(run(block, places[name], addresses, net.spaces[name].enter))
    written, metrics, after = said["anywhere"]
    assert written.count('"status":"ready"') == 3
    assert '"it lasts"' in written
    assert '"it lasts"' in after
    for address in NAMES:
        assert f'machine="http://{addresses[address]}:4000"' in metrics
    assert sum(line.startswith("topics_shard_holder{") for line in metrics.splitlines()) == 3
    assert '"status":"ready"' in said["10.0.0.1"][-1]
