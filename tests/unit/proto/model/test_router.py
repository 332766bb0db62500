"""Claims about errors of the router graph: they name only topics that the key may access."""

from __future__ import annotations

import pytest

from proto.model.errors import ErrorCode, TopicsError
from proto.model.keys import ALL_SCOPES, Key
from proto.model.router import RouterConfig, check_cycle, check_fan_in

MINE = Key(b"k", ALL_SCOPES, ("my:",))
ANY = Key(b"k", ALL_SCOPES, ())
OTHERS = [RouterConfig("my:b", "their:c"), RouterConfig("their:c", "their:d"), RouterConfig("their:d", "my:a")]


@pytest.mark.parametrize(
    ("key", "way", "named"),
    [
        (MINE, "my:a -> my:b -> … -> my:a;", ["my:a", "my:b", "my:a"]),
        (ANY, "my:a -> my:b -> their:c -> their:d -> my:a;", ["my:a", "my:b", "their:c", "their:d", "my:a"]),
    ],
)
def test_a_cycle_names_no_topic_of_others(key: Key, way: str, named: list[str]) -> None:
    with pytest.raises(TopicsError) as caught:
        check_cycle(RouterConfig("my:a", "my:b"), OTHERS, key)
    assert caught.value.code is ErrorCode.ROUTER_CYCLE
    assert way in caught.value.message
    assert caught.value.detail == {"cycle": named}


def test_a_second_source_is_refused_without_naming_the_first_of_others() -> None:
    for key, told in ((MINE, False), (ANY, True)):
        with pytest.raises(TopicsError) as caught:
            check_fan_in(RouterConfig("my:b", "my:a"), OTHERS, key)
        assert ("their:d" in f"{caught.value.message}{caught.value.detail}") is told
        assert caught.value.detail is not None
        assert caught.value.detail["reason"] == "router_dest_fan_in"
