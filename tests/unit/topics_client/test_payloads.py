"""Values of a program as JSON and back, of the standard library, pydantic and msgspec."""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import subprocess
import sys
import threading
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import msgspec
import pydantic
import pytest

from tests.unit.topics_client.fake import Fake, appended, page, records, session, stream
from topics_client import DecodeError, Gap, Json, from_json, to_json
from topics_client.payloads import reader, writer

NOW = datetime(2027, 1, 31, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
PRICE = Decimal("12345678901234567890.0100")
NAME = UUID("12345678-1234-5678-1234-567812345678")


class Colour(Enum):
    RED = "red"
    BLUE = 2


class Size(IntEnum):
    SMALL = 1


@dataclasses.dataclass
class Line:
    price: Decimal
    at: datetime
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Order:
    id: UUID
    lines: list[Line]
    colour: Colour
    by_day: dict[str, Decimal]
    numbers: dict[int, float]
    due: date | None = None
    parent: Order | None = None
    total: int = dataclasses.field(init=False, default=3)


class Model(pydantic.BaseModel):
    price: Decimal
    at: datetime
    from_: str = pydantic.Field(alias="from")
    line: Line | None = None


class Struct(msgspec.Struct, rename="camel"):
    unit_price: Decimal
    sold_at: datetime
    line: Line | None = None
    counts: dict[int, str] = {}


LINE = Line(PRICE, NOW, ("a", "b"))
ORDER = Order(NAME, [LINE], Colour.BLUE, {"monday": PRICE}, {1: 0.5}, date(2027, 1, 31))
Id = NewType("Id", int)

WHOLE: list[tuple[Any, Any]] = [
    (NOW, datetime),
    (NOW.astimezone(UTC), datetime),
    (date(2027, 1, 31), date),
    (time(1, 2, 3), time),
    (PRICE, Decimal),
    (Decimal("1E+3"), Decimal),
    (NAME, UUID),
    (Colour.RED, Colour),
    (Size.SMALL, Size),
    ({1, 2}, set[int]),
    (frozenset({"a"}), frozenset[str]),
    ((1, "a"), tuple[int, str]),
    ([PRICE, NOW], list[Decimal | datetime]),
    ([1], collections.abc.Sequence[int]),
    ({"a": [NOW]}, dict[str, list[datetime]]),
    (None, Decimal | None),
    (7, Id),
    (7, Annotated[int, "seven"]),
    ("b", Literal["a", "b"]),
    ({"any": [1, None]}, Any),
    (LINE, Line),
    (ORDER, Order),
    (dataclasses.replace(ORDER, parent=ORDER), Order),
    (Model(price=PRICE, at=NOW, **{"from": "here"}, line=LINE), Model),
    (Struct(PRICE, NOW, LINE, {1: "one"}), Struct),
    ([Struct(PRICE, NOW)], list[Struct]),
]


@pytest.mark.parametrize(("value", "kind"), WHOLE, ids=[str(kind) for _, kind in WHOLE])
def test_a_value_comes_back_as_it_was(value: Any, kind: Any) -> None:
    text = writer(to_json)({"deep": [value]})
    (back,) = json.loads(text)["deep"]
    found = from_json(back, kind)
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, datetime):
        assert found.utcoffset() == value.utcoffset()
    if isinstance(value, Decimal):
        assert found.as_tuple() == value.as_tuple()


def test_models_are_written_under_the_names_that_they_read() -> None:
    written = json.loads(writer(to_json)([Model(price=PRICE, at=NOW, **{"from": "here"}), Struct(PRICE, NOW)]))
    assert [set(each) for each in written] == [
        {"price", "at", "from", "line"},
        {"unitPrice", "soldAt", "line", "counts"},
    ]
    assert written[0]["price"] == written[1]["unitPrice"] == str(PRICE)


MISFITS: list[tuple[Any, Any, str]] = [
    (True, int, "bool in place of int"),
    (1.5, int, "float in place of int"),
    ("1", int, "str in place of int"),
    (1, bool, "int in place of bool"),
    (True, float, "bool in place of float"),
    ("1", float, "str in place of float"),
    (None, str, "NoneType in place of str"),
    ("x", Decimal, "in place of a number"),
    (5, datetime, "int in place of str"),
    ("yesterday", datetime, "yesterday"),
    ("purple", Colour, "purple"),
    ([1], tuple[int, int], "1 values in place of 2"),
    ({"a": 1}, list[int], "dict in place of list"),
    ([["a"]], dict[str, int], "list in place of dict"),
    (1, Literal[True], "in place of one of True"),
    ([], Order, "list in place of dict"),
    ({"price": "1"}, Line, "Line lacks at"),
    ({"price": "1", "at": 5}, Line, "Line.at: int in place of str"),
    ({"price": "x"}, Model, "validation error"),
    ({"unitPrice": "x"}, Struct, "unitPrice"),
]


@pytest.mark.parametrize(("data", "kind", "told"), MISFITS, ids=[f"{data} {kind}" for data, kind, _ in MISFITS])
def test_data_that_does_not_fit_is_refused_with_its_place(data: Any, kind: Any, told: str) -> None:
    with pytest.raises(Exception, match=told):
        from_json(data, kind)


def test_fields_that_a_dataclass_does_not_have_are_passed_over() -> None:
    assert from_json({"price": 9.9, "at": "2027-01-31T00:00:00Z", "later": 1}, Line).price == Decimal("9.9")


@pytest.mark.parametrize("kind", [complex, bytes, list[complex], dict[str, bytes], type("Plain", (), {})])
def test_a_type_that_json_cannot_become_is_told_before_any_record_comes(kind: Any) -> None:
    client = Fake([]).client()
    for use in (client.read, client.tail, lambda topic, type: client.worker(topic, print, type=type)):
        with pytest.raises(TypeError, match="decode="):
            use("t", type=kind)  # type: ignore[operator]


@pytest.mark.parametrize("value", [b"bytes", object(), 1j, float("nan"), {1: {b"a"}}, Order])
def test_what_is_not_json_is_refused_before_it_is_sent(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        writer(to_json)(value)


def test_threads_that_meet_a_type_first_all_get_its_reader() -> None:
    for _ in range(20):
        kind = dataclasses.make_dataclass("Node", [("next", Any), ("at", datetime)])
        start, found = threading.Barrier(8), []

        def make(kind: type = kind, start: threading.Barrier = start, found: list[Any] = found) -> None:
            start.wait()
            found.append(reader(kind)({"next": None, "at": "2027-01-31"}).at)

        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [datetime(2027, 1, 31)] * 8


def test_neither_pydantic_nor_msgspec_is_imported() -> None:
    program = "import sys, topics_client; print({'pydantic', 'msgspec'} & sys.modules.keys() or 'none')"
    path = Path(__file__).parents[3] / "packages" / "topics-client"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "none\n"


async def test_a_client_sends_such_values_and_reads_them_by_type() -> None:
    line = {"price": "9.90", "at": NOW.isoformat()}
    told = page(1, 1, 1)
    told = type(told)(200, json={**told.json(), "records": [{"$seq": 1, "$ts": 1, "data": line, "$tag": "x"}]})
    fake = Fake([appended(1, 2), appended(3, 3), told])
    async with fake.client() as client:
        await client.publish("t", records=[{"data": LINE, "meta": {"at": NOW}}, {"data": Json(b"9.90")}])
        async with client.publisher("t") as publisher:
            await publisher.send({"order": ORDER, "price": PRICE})
        (record,) = [record async for record in client.read("t", type=Line)]
    assert record.data == Line(Decimal("9.90"), NOW)
    assert record.tag == "x"
    assert fake.bodies[0]["records"][0]["meta"] == {"at": NOW.isoformat()}
    assert b'"data":9.90' in fake.requests[0].content
    assert fake.bodies[1]["records"][0]["data"]["order"]["lines"][0]["price"] == str(PRICE)


async def test_a_record_of_another_type_is_raised_and_the_iterator_goes_on_after_it() -> None:
    async with Fake([page(1, 3, 3)]).client() as client:
        reading = client.read("t", type=Literal[1, 3])
        assert (await anext(reading)).data == 1
        with pytest.raises(DecodeError, match="t: record 2 is not of the type asked for") as raised:
            await anext(reading)
        assert raised.value.record.data == 2
        assert (await anext(reading)).data == 3
    gone = {"gap_from": 1, "gap_to": 4, "reason": "cap", "earliest_seq": 5}
    async with Fake([page(5, 5, 5, gone)]).client() as client:
        assert isinstance(await anext(client.read("t", type=str, gaps="yield")), Gap)
    fake = Fake([session(t=0), stream(records("t", 1, 2))])
    async with fake.client() as client, client.tail("t", type=Literal[2]) as tail:
        with pytest.raises(DecodeError):
            await anext(tail)
        assert (await anext(tail)).data == 2


async def test_hooks_of_the_caller_take_the_place_of_ours() -> None:
    fake = Fake([appended(1, 1), page(1, 1, 1)])

    def encode(value: Any) -> Any:
        return float(value) if isinstance(value, Decimal) else to_json(value)

    async with fake.client(encode=encode, decode=lambda data, kind: (kind, data)) as client:
        await client.publish("t", [Decimal("9.90"), NOW])
        assert [record.data async for record in client.read("t", type=b"anything")] == [(b"anything", 1)]
    assert fake.bodies[0]["records"] == [{"data": [9.9, NOW.isoformat()]}]


def test_msgspec_and_others_are_hooks_as_they_are() -> None:
    assert Fake([]).client(decode=msgspec.convert).read("t", type=complex) is not None
