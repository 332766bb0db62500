"""Claims about routers over real HTTP: a test for each promise, with source and destination in one shard and in two."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from proto.model.names import shard_of
from tests.support.events import watch
from tests.support.service import Service, until
from tests.support.sse import decoded, events

_numbers = itertools.count()


class Ends:
    """The two topics of a test, and the requests on them."""

    def __init__(self, service: Service, apart: bool) -> None:
        self.service = service
        stem = f"r{next(_numbers)}"
        self.source = f"{stem}:source"
        place = shard_of(self.source, 2) ^ apart
        self.dest = next(name for n in range(99) if shard_of(name := f"{stem}:dest{n}", 2) == place)
        self.router = f"{self.source}->{self.dest}"

    def put(self, name: str = "", expected: int = 201, **fields: Any) -> Any:
        body = {"source": self.source, "dest": self.dest, **fields}
        return self.ask("PUT", f"/v0/routers/{quote(name or self.router)}", body, expected)

    def ask(self, method: str, path: str, body: Any = None, expected: int = 200) -> Any:
        status, answer = self.service.request(method, path, body)
        assert status == expected, answer
        return answer

    def write(self, *records: dict[str, Any], topic: str = "") -> Any:
        return self.ask("POST", f"/v0/topics/{topic or self.source}?return_seqs=false", {"records": records})

    def records(self, topic: str = "") -> list[dict[str, Any]]:
        body = {"limit": 1000, "include_tags": True}
        found: list[dict[str, Any]] = self.ask("POST", f"/v0/topics/{topic or self.dest}/diff", body)["records"]
        return found

    def arrived(self, count: int, topic: str = "") -> list[dict[str, Any]]:
        until(lambda: len(self.records(topic)) >= count, f"{count} records in {topic or self.dest}")
        return self.records(topic)

    def data(self, count: int, topic: str = "") -> list[Any]:
        return [record["data"] for record in self.arrived(count, topic)]


@pytest.fixture(params=[False, True], ids=["one-shard", "two-shards"])
def ends(shared: Service, request: pytest.FixtureRequest) -> Ends:
    return Ends(shared, request.param)


def test_records_appended_from_now_on_arrive_as_they_are_in_order(ends: Ends) -> None:
    ends.ask("PUT", f"/v0/topics/{ends.source}", expected=201)
    ends.write({"data": "before"})
    created = ends.put()
    assert created.pop("performance")["server_total_ms"] >= 0
    assert created == {
        "router": ends.router,
        "created": True,
        "source": ends.source,
        "dest": ends.dest,
        "preserve_node": True,
        "preserve_tag": True,
        "filter": None,
        "allow_cycle": False,
        "guarantee": "at_least_once",
    }
    ends.write({"data": {"n": 1.0}, "tag": "t", "node": "me", "meta": {"k": [1, 2]}}, {"data": 2})
    ends.write({"data": 3})
    first, second, third = ends.arrived(3)
    assert first.pop("$ts") >= 0
    assert first == {"$seq": 1, "$tag": "t", "$node": "me", "data": {"n": 1.0}, "meta": {"k": [1, 2]}}
    assert (second["data"], third["data"], third["$seq"]) == (2, 3, 3)
    assert "meta" not in second
    found = ends.ask("GET", f"/v0/routers/{quote(ends.router)}")
    assert found["forwarded_total"] == 3
    assert "created" not in found


def test_a_reader_gets_everybodys_records_but_its_own(ends: Ends) -> None:
    ends.put()
    ends.write({"data": 1, "node": "me"}, {"data": 2, "node": "you"})
    ends.arrived(2)
    answer = ends.ask("POST", f"/v0/topics/{ends.dest}/diff", {"node": "me"})
    assert [record["data"] for record in answer["records"]] == [2]


def test_node_and_tag_can_be_cleared(ends: Ends) -> None:
    ends.put(preserve_node=False, preserve_tag=False)
    ends.write({"data": 1, "tag": "t", "node": "me"})
    assert {"$node", "$tag"} & ends.arrived(1)[0].keys() == set()


@pytest.mark.parametrize("match", [["tag", "Glob", "public:*"], ["tag", "Eq", "public:a"], "public:a"])
def test_a_filter_lets_only_matching_tags_through(ends: Ends, match: Any) -> None:
    assert ends.put(filter=match)["filter"] == match
    ends.write({"data": 1, "tag": "public:a"}, {"data": 2, "tag": "private"}, {"data": 3})
    ends.write({"data": 4, "tag": "public:a"})
    assert ends.data(2) == [1, 4]
    assert ends.ask("GET", f"/v0/topics/{ends.dest}")["head_seq"] == 2


def test_an_identical_put_changes_nothing_and_a_changed_one_keeps_what_it_does_not_name(ends: Ends) -> None:
    ends.put(filter=["tag", "Eq", "a"])
    again = ends.put(expected=200, filter=["tag", "Eq", "a"])
    assert again["created"] is False
    path = f"/v0/routers/{quote(ends.router)}"
    changed = ends.ask("PUT", path, {"preserve_tag": False})
    assert (changed["filter"], changed["preserve_tag"]) == (["tag", "Eq", "a"], False)
    assert ends.ask("PUT", path, {"filter": None})["filter"] is None
    ends.write({"data": 1, "tag": "b"})
    assert "$tag" not in ends.arrived(1)[0]


def test_a_router_can_be_given_another_destination(ends: Ends) -> None:
    ends.put()
    ends.write({"data": 1})
    ends.arrived(1)
    other = f"{ends.dest}:other"
    moved = ends.put(expected=200, dest=other)
    assert (moved["created"], moved["dest"]) == (False, other)
    ends.write({"data": 2})
    assert ends.data(1, other) == [2]
    assert ends.data(1) == [1]
    listed = ends.ask("GET", f"/v0/routers?source={ends.source}")["routers"]
    assert [(row["router"], row["dest"]) for row in listed] == [(ends.router, other)]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"source": "a"},
        {"dest": "a"},
        {"source": "a", "dest": "a"},
        {"source": "a", "dest": "/"},
        {"source": "a", "dest": "b", "filter": ["node", "Eq", "x"]},
        {"source": "a", "dest": "b", "filter": ["tag", "Glob", "*x"]},
        {"source": "a", "dest": "b", "filter": 7},
        {"source": "a", "dest": "b", "guarantee": "twice"},
        {"source": "a", "dest": "b", "preserve_tag": "yes"},
    ],
    ids=str,
)
def test_what_is_no_router_is_refused_and_makes_no_topics(shared: Service, body: Any) -> None:
    status, answer = shared.request("PUT", "/v0/routers/refused", body)
    assert (status, answer["error"]["code"]) == (400, "invalid_request")
    assert shared.request("GET", "/v0/topics/a")[0] == 404


def test_router_names_follow_their_grammar(shared: Service) -> None:
    for name in (">x", "x%20y", "%C3%A4", "x" * 256):
        assert shared.request("PUT", f"/v0/routers/{name}", {"source": "a", "dest": "b"})[0] == 400


def test_a_missing_destination_is_404_if_it_shall_not_be_created(ends: Ends) -> None:
    refused = ends.put(create_dest=False, expected=404)
    assert refused["error"]["code"] == "topic_not_found"
    ends.ask("GET", f"/v0/topics/{ends.source}", expected=404)
    ends.ask("PUT", f"/v0/topics/{ends.dest}", expected=201)
    ends.put(create_dest=False)


def test_an_unknown_field_is_refused_by_name(ends: Ends) -> None:
    for field, meant in (("guarante", "guarantee"), ("preserveTag", "preserve_tag"), ("colour", None)):
        error = ends.put(expected=400, **{field: True})["error"]
        expected = {"field": field} | ({"did_you_mean": meant} if meant else {})
        assert (error["code"], error["detail"]) == ("invalid_request", expected)
    ends.ask("GET", f"/v0/routers/{quote(ends.router)}", expected=404)
    ends.ask("GET", f"/v0/topics/{ends.source}", expected=404)


def test_cycles_are_refused_by_name_and_a_second_source_is_too(ends: Ends) -> None:
    ends.put()
    third = f"{ends.dest}:third"
    ends.ask("PUT", f"/v0/routers/{third}", {"source": ends.dest, "dest": third}, 201)
    refused = ends.ask("PUT", f"/v0/routers/{third}:x", {"source": third, "dest": ends.source}, 409)["error"]
    assert (refused["code"], refused["detail"]["cycle"]) == (
        "router_cycle",
        [third, ends.source, ends.dest, third],
    )
    refused = ends.ask("PUT", f"/v0/routers/{third}:y", {"source": f"{third}:2", "dest": ends.dest}, 409)["error"]
    assert (refused["code"], refused["detail"]["reason"]) == ("topic_exists_incompatible", "router_dest_fan_in")
    # A second router from the same source is fine; when both are gone, the destination is free.
    ends.put(name=f"{third}:z", filter="x")
    for name in (ends.router, f"{third}:z"):
        ends.ask("DELETE", f"/v0/routers/{quote(name)}")
    ends.ask("PUT", f"/v0/routers/{third}:y", {"source": f"{third}:2", "dest": ends.dest}, 201)


def test_an_allowed_cycle_ends_after_eight_hops(ends: Ends) -> None:
    ends.put(allow_cycle=True)
    body = {"source": ends.dest, "dest": ends.source, "allow_cycle": True}
    ends.ask("PUT", f"/v0/routers/{quote(ends.dest)}:back", body, 201)
    ends.write({"data": "x", "node": "me"})
    assert ends.data(4) == ["x"] * 4
    assert ends.data(5, ends.source) == ["x"] * 5
    last = ends.write({"data": "y"})
    until(lambda: len(ends.records(ends.source)) == 10, "the second record to come back as often")
    assert last["head_seq"] == 6
    assert all("hops" not in record for record in ends.records())


def test_exactly_once_stamps_where_a_record_comes_from(ends: Ends) -> None:
    ends.put(guarantee="exactly_once")
    ends.write(
        {"data": 1, "meta": {"mine": 1, "_topics_router": {"forged": True}}}, {"data": 2}, {"data": 3, "meta": {}}
    )
    first, second, third = ends.arrived(3)
    assert first["meta"]["mine"] == 1
    stamps = [record["meta"]["_topics_router"] for record in (first, second, third)]
    assert [stamp["seq"] for stamp in stamps] == [1, 2, 3]
    assert {(stamp["router"], stamp["source"]) for stamp in stamps} == {(ends.router, ends.source)}
    assert len({stamp["key"] for stamp in stamps}) == 3
    assert isinstance(stamps[0]["epoch"], int)
    # A second router behind it replaces the mark with its own.
    after = f"{ends.dest}:after"
    ends.ask("PUT", f"/v0/routers/{after}", {"source": ends.dest, "dest": after, "guarantee": "exactly_once"}, 201)
    ends.write({"data": 4, "meta": {"mine": 4}})
    (last,) = ends.arrived(1, after)
    assert last["meta"]["_topics_router"]["source"] == ends.dest
    assert last["meta"]["mine"] == 4


def test_a_full_destination_holds_its_router_up_and_nobody_else(ends: Ends) -> None:
    ends.ask("PUT", f"/v0/topics/{ends.dest}", {"cap_records": 2, "discard": "reject"}, 201)
    ends.put()
    free = f"{ends.dest}:free"
    ends.ask("PUT", f"/v0/routers/{free}", {"source": ends.source, "dest": free}, 201)
    ends.write(*({"data": n} for n in range(5)))
    assert ends.data(2) == [0, 1]
    assert ends.data(5, free) == [0, 1, 2, 3, 4]
    ends.write({"data": 5})
    assert ends.data(6, free)[-1] == 5
    assert len(ends.records()) == 2
    ends.ask("POST", f"/v0/topics/{ends.dest}/delete", {"before_seq": 3})
    until(lambda: [r["data"] for r in ends.records()] == [2, 3], "what fits now")


def test_what_the_source_lost_before_it_fitted_is_told(ends: Ends) -> None:
    ends.ask("PUT", f"/v0/topics/{ends.dest}", {"cap_records": 2, "discard": "reject"}, 201)
    ends.put()
    ends.write(*({"data": n} for n in range(6)))
    ends.arrived(2)
    ends.ask("PUT", f"/v0/topics/{ends.source}", {"cap_records": 1})
    ends.ask("PUT", f"/v0/topics/{ends.dest}", {"cap_records": 9})
    assert until(lambda: ends.ask("GET", f"/v0/topics/{ends.dest}")["head_seq"] == 6, "the rest")
    answer = ends.ask("POST", f"/v0/topics/{ends.dest}/diff", {"from_seq": 2})
    assert answer["tombstone"]["reason"] == "source_trim"
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (3, 5)
    assert [(r["$seq"], r["data"]) for r in answer["records"]] == [(6, 5)]
    # A stream says the same, also as the first thing of a connection.
    wid = watch(ends.service, topics={ends.dest: {"from_seq": 2}})
    with events(ends.service, wid) as stream:
        ident = stream.upto("tombstone").id
        stream.upto("caught-up")
        told = {"topic": ends.dest, "reason": "source_trim", "gap_from": 3, "gap_to": 5}
        assert stream.of("tombstone") == [{**told, "earliest_seq": 1, "head_seq": 6}]
        assert stream.seqs(ends.dest) == [6]
    # Its id is after the gap, so a client that returns with it gets what follows.
    assert decoded(ident) == {ends.dest: 5}
    with events(ends.service, wid, **{"Last-Event-ID": ident}) as stream:
        stream.upto("caught-up")
        assert (stream.of("tombstone"), stream.seqs(ends.dest)) == ([], [6])


def test_deletions_are_not_forwarded_and_tags_delete_at_the_destination_too(ends: Ends) -> None:
    ends.put()
    ends.write({"data": 1, "tag": "a"}, {"data": 2, "tag": "b"})
    ends.arrived(2)
    ends.ask("POST", f"/v0/topics/{ends.source}/delete", {"match": "a"})
    ends.write({"data": 3, "tag": "a"})
    assert ends.data(3) == [1, 2, 3]
    assert ends.ask("POST", f"/v0/topics/{ends.dest}/delete", {"match": "a"})["deleted"] == 2


def test_a_deleted_router_stops_and_leaves_what_it_brought(ends: Ends) -> None:
    ends.put()
    ends.write({"data": 1})
    ends.arrived(1)
    path = f"/v0/routers/{quote(ends.router)}"
    assert ends.ask("DELETE", path)["deleted"] is True
    assert ends.ask("DELETE", path)["deleted"] is False
    assert ends.ask("GET", path, expected=404)["error"]["code"] == "router_not_found"
    ends.write({"data": 2})
    # Created again, the router forwards records appended from then on.
    ends.put()
    ends.write({"data": 3})
    assert ends.data(2) == [1, 3]


def test_another_source_is_a_change_of_the_same_router(ends: Ends) -> None:
    ends.put()
    ends.write({"data": "old"})
    ends.arrived(1)
    other = f"{ends.source}:other"
    ends.ask("POST", f"/v0/topics/{other}", {"records": [{"data": "before"}]}, 201)
    changed = ends.put(expected=200, source=other)
    assert (changed["created"], changed["source"], changed["dest"]) == (False, other, ends.dest)
    ends.write({"data": "left behind"})
    ends.write({"data": "new"}, topic=other)
    # It begins at the head of its new source, as a new router would, and takes nothing more from the old one.
    assert ends.data(2) == ["old", "new"]
    until(lambda: ends.ask("GET", f"/v0/routers/{quote(ends.router)}")["forwarded_total"] == 2, "both to be counted")
    # The old source may be deleted: its copies stay, and so does the router.
    assert ends.ask("DELETE", f"/v0/topics/{ends.source}")["routers_removed"] == []
    assert ends.put(expected=200, source=other)["created"] is False


@pytest.mark.parametrize("which", ["source", "dest"])
def test_deleting_a_topic_deletes_its_routers(ends: Ends, which: str) -> None:
    ends.put()
    ends.put(name=f"{ends.source}:second", filter="x")
    ends.write({"data": 1})
    ends.arrived(1)
    topic = getattr(ends, which)
    answer = ends.ask("DELETE", f"/v0/topics/{topic}")
    assert answer["deleted"] is True
    assert answer["routers_removed"] == sorted([ends.router, f"{ends.source}:second"])
    assert ends.ask("GET", f"/v0/routers?source={ends.source}")["routers"] == []
    if which == "source":
        assert ends.data(1) == [1]
        # A topic of the same name is another topic.
        ends.ask("POST", f"/v0/topics/{ends.source}", {"records": [{"data": 2}]}, 201)
        assert len(ends.records()) == 1


def test_a_topic_that_is_not_empty_keeps_its_routers_when_only_an_empty_one_was_to_go(ends: Ends) -> None:
    ends.put()
    ends.write({"data": 1})
    ends.ask("DELETE", f"/v0/topics/{ends.source}?if_empty=true", expected=409)
    ends.write({"data": 2})
    assert ends.data(2) == [1, 2]


def test_lists_come_in_pages_and_are_filtered(ends: Ends) -> None:
    names = [f"{ends.source}:l{n}" for n in range(5)]
    for n, name in enumerate(names):
        ends.ask("PUT", f"/v0/routers/{name}", {"source": ends.source, "dest": f"{ends.dest}:{n}"}, 201)
    found: list[str] = []
    path = f"/v0/routers?prefix={ends.source}&page_size=2"
    page = ends.ask("GET", path)
    while True:
        found += [row["router"] for row in page["routers"]]
        if "next_cursor" not in page:
            break
        page = ends.ask("GET", f"{path}&cursor={quote(page['next_cursor'])}")
    assert found == names
    (row,) = ends.ask("GET", f"/v0/routers?dest={ends.dest}:3")["routers"]
    assert row == {
        "router": names[3],
        "source": ends.source,
        "dest": f"{ends.dest}:3",
        "guarantee": "at_least_once",
        "forwarded_total": 0,
    }


def test_metrics_count_routers_and_what_they_copy(ends: Ends) -> None:
    ends.put()
    ends.write({"data": 1})
    ends.arrived(1)
    connection = ends.service.connect()
    try:
        connection.request("GET", "/v0/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    assert float(text.split("\ntopics_routers ")[1].split("\n")[0]) >= 1
    assert float(text.split("\ntopics_router_copies_total ")[1].split("\n")[0]) >= 1


def test_many_routers_share_one_read_of_their_source(ends: Ends) -> None:
    dests = [f"{ends.dest}:{n}" for n in range(30)]
    for dest in dests:
        ends.ask("PUT", f"/v0/routers/{dest}", {"source": ends.source, "dest": dest}, 201)
    for n in range(20):
        ends.write({"data": n})
    for dest in dests:
        assert ends.data(20, dest) == list(range(20))


def test_routers_count_against_their_cap_before_anything_is_made(new_service: Callable[..., Service]) -> None:
    service = new_service(TOPICS_MAX_ROUTERS="1").start()
    assert service.request("PUT", "/v0/routers/one", {"source": "a", "dest": "b"})[0] == 201
    status, answer = service.request("PUT", "/v0/routers/two", {"source": "x", "dest": "y"})
    assert (status, answer["error"]["code"]) == (429, "throttled")
    assert answer["error"]["detail"] == {"limit": "max_routers", "max": 1}
    assert service.request("GET", "/v0/topics/x")[0] == 404
    assert service.request("PUT", "/v0/routers/one", {"preserve_tag": False})[0] == 200
    assert service.request("DELETE", "/v0/routers/one")[0] == 200
    assert service.request("PUT", "/v0/routers/two", {"source": "x", "dest": "y"})[0] == 201


def test_a_key_needs_all_three_names_of_a_router(new_service: Callable[..., Service]) -> None:
    service = new_service(TOPICS_API_KEYS="full,mine::my").start()

    def ask(key: str, method: str, path: str, body: Any = None) -> int:
        connection = service.connect()
        try:
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    for name, source, dest in (("my", "my1", "other"), ("my", "other", "my1"), ("other", "my1", "my2")):
        assert ask("mine", "PUT", f"/v0/routers/{name}", {"source": source, "dest": dest}) == 403
    assert ask("mine", "PUT", "/v0/routers/my", {"source": "my1", "dest": "my2"}) == 201
    assert ask("full", "PUT", "/v0/routers/my-but", {"source": "other", "dest": "my3"}) == 201
    assert ask("mine", "GET", "/v0/routers/my-but") == ask("mine", "DELETE", "/v0/routers/my-but") == 403
    assert ask("mine", "PUT", "/v0/routers/my-but", {"source": "my1", "dest": "my4"}) == 403
    assert ask("mine", "GET", "/v0/routers/my") == 200


def test_routers_are_changed_after_each_death_of_the_shard_that_does_it(
    new_service: Callable[..., Service],
) -> None:
    """It has the destination of every second router, and the others have it elsewhere."""
    service = new_service().start()
    places = [next(name for n in range(99) if shard_of(name := f"dest{k}:{n}", 2) == k % 2) for k in range(4)]
    for number, dest in enumerate(places):
        if number:
            os.kill(int(service.child("shard-00")["pid"]), signal.SIGKILL)
        path, body = f"/v0/routers/r{number}", {"source": "a", "dest": dest}
        until(lambda path=path, body=body: service.request("PUT", path, body)[0] in (200, 201), "the router")
        # Its successor knows the routers that were there before.
        status, answer = service.request("PUT", "/v0/routers/back", {"source": dest, "dest": "a"})
        assert (status, answer["error"]["code"]) == (409, "router_cycle")
    listed = service.request("GET", "/v0/routers")[1]["routers"]
    assert [(row["router"], row["dest"]) for row in listed] == [(f"r{n}", dest) for n, dest in enumerate(places)]
    assert service.request("DELETE", "/v0/topics/a")[1]["routers_removed"] == ["r0", "r1", "r2", "r3"]
