"""An option that a method does not have is named with those that it has, and no inner class is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.topics_client.fake import Fake
from topics_client import AsyncClient, Client, worker

WRONG: list[tuple[str, Callable[[], Any]]] = [
    ("Client has no 'tokn'; it has backend, context, ", lambda: Client("http://fake", tokn="k")),  # type: ignore[call-arg]
    ("AsyncClient has no 'tokn'; it has context, ", lambda: AsyncClient("http://fake", tokn="k")),  # type: ignore[call-arg]
    ("read has no 'frm'; it has cursor, from_seq, gaps, ", lambda: Fake([]).client().read("t", frm=1)),
    ("tail has no 'cursr'; it has commit, ", lambda: Fake([]).client().tail("t", cursr="c")),
    ("publisher has no 'batch'; it has batch_bytes, ", lambda: Fake([]).client().publisher("t", batch=1)),
    ("work has no 'lease'; it has backoff, ", lambda: Fake([]).client().worker("q", print, lease=1)),
    ("worker has no 'lease'; it has backoff, ", lambda: worker("q", lease=1)),
]


@pytest.mark.parametrize(("told", "call"), WRONG)
def test_a_wrong_option_is_named_with_those_there_are(told: str, call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError) as raised:
        call()
    assert str(raised.value).startswith(told)
    assert "__init__" not in str(raised.value)


async def test_wrong_fields_of_records_and_of_a_publish_are_named() -> None:
    async with Fake([]).client() as client:
        with pytest.raises(TypeError, match="a record has no 'dat'; it has data, delay_ms, meta, node, tag"):
            await client.publish("t", records=[{"dat": 1}])
        with pytest.raises(TypeError, match="a record needs data"):
            await client.publish("t", records=[{"tag": "a"}])
        with pytest.raises(TypeError, match="a record has no 'tagg'"):
            await client.publisher("t").send(1, tagg="a")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="publish has no 'idempotency'"):
            await client.publish("t", 1, idempotency="k")  # type: ignore[call-arg]
