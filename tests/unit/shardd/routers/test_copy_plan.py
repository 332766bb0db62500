"""The stamp of an `exactly_once` router replaces the member of its name; nothing else of a writer's `meta` changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from proto.format.columns import Columns, optional, plain
from proto.model.router import RouterConfig
from shardd.routers import copy_plan
from shardd.topic.lane import Lane, Router

OURS = b'{"_topics_router":{"router":"r","source":"a:b","epoch":7,"seq":3,"key":"r/7/3"}'


def stamped(*metas: bytes | None) -> list[bytes]:
    router = Router("r2", RouterConfig("s", "d", guarantee="exactly_once"), 0)
    lane = Lane("s", 9, 0, 0, 0, {router.name: router})
    columns = Columns(len(metas), 0, plain([b"1"] * len(metas)), meta=optional(metas))
    return list(copy_plan._stamped(lane, router, columns, range(1, len(metas) + 1)).cells(0, len(metas)))


@pytest.mark.parametrize(
    ("meta", "left"),
    [
        (b"{}", b""),
        (b'{"mine":1}', b'"mine":1'),
        (OURS + b"}", b""),
        (OURS + b',"mine":1}', b'"mine":1'),
        (OURS + b' ,"mine":1}', b'"mine":1'),
        (b'{"origin":' + OURS + b',"k":1}}', b'"origin":' + OURS + b',"k":1}'),
        (b'{"_topics_router":{"note":"}"},"mine":1}', b'"mine":1'),
        (b'{"_topics_router":{"a":1} ,"mine":1}', b'"mine":1'),
        (b'{"_topics_router":{"x":"}"},"y":{"_topics_router":1}}', b'"y":{"_topics_router":1}'),
        (b'{"mine":1,"_topics_router":true}', b'"mine":1'),
        (b'{"mine":"{\\"_topics_router\\":{}}"}', b'"mine":"{\\"_topics_router\\":{}}"'),
        (b'{"_topics\\u005frouter":{"seq":1},"mine":1}', b'"mine":1'),
        (b'{"_topics_route\\u0072":1}', b""),
        (b'{"_t\\u006fpics_router":1,"mine":1}', b'"mine":1'),
        (b'{"_topics_r\\u006Futer":1,"mine":1}', b'"mine":1'),
        (b'{"mine":"\\u006f"}', b'"mine":"\\u006f"'),
        (b'{"\\u005ftopics_router":1,"mine":"\\ud800"}', b'"mine":"\\ud800"'),
    ],
)
def test_all_but_the_reserved_member_stays_as_it_was_written(meta: bytes, left: bytes) -> None:
    for cells in (stamped(meta), stamped(meta, OURS + b"}", None)):
        copy = cells[0]
        stamp = b'{"_topics_router":{"router":"r2","source":"s","epoch":9,"seq":1,"key":"r2/9/1"}'
        assert copy == stamp + (b"," + left if left else b"") + b"}"


def test_each_copy_is_json_with_one_stamp_whatever_stands_beside_it() -> None:
    metas = (b'{"_topics_router":{"x":"}"},"y":{"_topics_router":1}}', OURS + b',"z":[]}', None, b'{"a":"\\u0065"}')
    made: list[Any] = list(map(msgspec.json.decode, stamped(*metas)))
    assert [each.pop("_topics_router")["seq"] for each in made] == [1, 2, 3, 4]
    assert made == [{"y": {"_topics_router": 1}}, {"z": []}, {}, {"a": "e"}]
