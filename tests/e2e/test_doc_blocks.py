"""Every block of shell and Python in the pages works as printed, in the order of its page, with keys and without."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.doc_blocks import COMPILED, ELSEWHERE, ROOT, RUN, blocks, pages, run
from tests.support.programs import free_port
from tests.support.service import Service
from topics_client import Client

PAGES = [page for page in pages() if page not in ELSEWHERE and any(not block.not_run for block in blocks(page))]
SAID = {
    "docs/howto/lake-without-spark.md": "[('hats', 1, 12.0), ('shoes', 2, 37.5)]",
    "docs/start.md": "3 {'from': 'python'}",
    "docs/cookbook.md": '"deduped":true',
    "docs/concepts/topics.md": '"gap_to":1',
    "docs/concepts/streams.md": "event: caught-up",
    "docs/concepts/routers.md": '"data":1}]',
    "docs/howto/multi-master.md": "from a",
    "docs/howto/from-kafka.md": "['orders:0', 'orders:1', 'orders:2']",
    "docs/howto/from-walrus.md": "OK User login: alice@example.com",
    "docs/howto/from-rog.md": "hello",
}
"""What some pages say that comes back."""
NOT_RUN = {
    "docs/histories.md": 1,
    "docs/operations.md": 2,
    "docs/lake.md": 2,
    "docs/spark.md": 3,
    "docs/spark-jobs.md": 2,
    "docs/start.md": 3,
    "docs/howto/browser.md": 1,
    "docs/howto/from-rog.md": 1,
    "docs/howto/from-walrus.md": 1,
    "docs/howto/lake-without-spark.md": 1,
    "docs/howto/multi-master.md": 1,
}
"""How many blocks of a page are not run. Each says why, above the block."""


Running = tuple[list[Service], dict[str, str], str]


@pytest.fixture(scope="module", params=["", "a-long-random-key"], ids=["without keys", "with keys"])
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two services, their addresses by those of the pages, and their key, which is empty if they need none."""
    key: str = request.param
    keys = {"TOPICS_API_KEYS": key} if key else {}
    listening = {"127.0.0.1:9091": free_port(), "127.0.0.1:7878": free_port()}
    walrus, rog = (f"127.0.0.1:{port}" for port in listening.values())
    with (
        Service(tmp_path_factory.mktemp("a"), TOPICS_WALRUS_LISTEN=walrus, TOPICS_ROG_LISTEN=rog, **keys) as first,
        Service(tmp_path_factory.mktemp("b"), **keys) as second,
    ):
        ports = {"127.0.0.1:4000": first.port, "127.0.0.1:4001": second.port} | listening
        yield (
            [first, second],
            {
                **{printed: f"127.0.0.1:{port}" for printed, port in ports.items()},
                "./topics-data": str(first.data_dir),
            },
            key,
        )


def cleared(service: Service, key: str) -> None:
    """Delete all topics and routers."""
    with Client(service.url, token=key) as client:
        for each in client.routers():
            assert client.delete_router(each["router"])
        for topic in client.topics():
            client.delete_topic(topic["topic"])


def without_times(answer: Any) -> Any:
    """An answer without what is different each time."""
    if isinstance(answer, dict):
        return {name: without_times(each) for name, each in answer.items() if name not in ("performance", "$ts")}
    return [without_times(each) for each in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_works(two: Running, page: str, tmp_path: Path) -> None:
    services, addresses, key = two
    said: list[str] = []
    for block in blocks(page):
        if block.kind == "json":
            assert without_times(json.loads(said[-1])) == without_times(json.loads(block.text)), block
        elif not block.not_run and block.kind not in COMPILED:
            said.append(run(block, tmp_path, addresses, token=key))
    for service in services:
        cleared(service, key)
    assert SAID.get(page, "") in "".join(said)


def test_the_example_of_a_cursor_goes_on_when_it_is_run_again(two: Running, tmp_path: Path) -> None:
    services, addresses, key = two
    (block,) = (block for block in blocks("docs/clients.md") if block.kind == "python" and "cursor=" in block.text)
    told = [run(block, tmp_path, addresses, token=key) for _ in range(3)]
    assert [line.partition(" Record")[0] for line in told] == ["clicks 1", "clicks 2", "clicks 3"]
    cleared(services[0], key)


def test_keys_are_needed_where_they_are_on(two: Running, tmp_path: Path) -> None:
    services, addresses, key = two
    block = next(block for block in blocks("docs/clients.md") if block.kind == "python")
    if key:
        with pytest.raises(AssertionError, match="Unauthorized"):
            run(block, tmp_path, addresses)
    else:
        run(block, tmp_path, addresses)
        cleared(services[0], key)


def test_blocks_that_are_not_run_are_few_and_say_why() -> None:
    marked = [block for page in pages() for block in blocks(page) if block.not_run]
    assert {block.page: sum(other.page == block.page for other in marked) for block in marked} == NOT_RUN
    assert all(len(block.not_run) > 20 for block in marked)
    others = [block for page in pages() for block in blocks(page) if block.kind not in (*RUN, *COMPILED, "json")]
    assert [str(block) for block in others if not block.not_run] == []


def test_pages_that_other_tests_run_are_named_there() -> None:
    compiled = {
        (block.page, COMPILED[block.kind]) for page in pages() for block in blocks(page) if block.kind in COMPILED
    }
    for page, test in [*ELSEWHERE.items(), *compiled]:
        assert re.search(rf'"(docs/)?(howto/)?{Path(page).name}"', (ROOT / test).read_text())
