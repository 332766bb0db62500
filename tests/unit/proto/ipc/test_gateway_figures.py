"""Figures of gateways: sums of all, and no counter that falls."""

from __future__ import annotations

import random

from proto.ipc.control import Decoder, OtherFigures, Pong, encode
from proto.ipc.figures import ShardFigures, SyncHistogram, WalFigures
from proto.ipc.gateway_figures import Accounts, GatewayFigures, ProtocolFigures, served, together


def counted(number: int, **more: int) -> GatewayFigures:
    return GatewayFigures(
        gateways=1,
        requests=[("append", 200, number), ("diff", 200, 1)],
        internal_errors={"append": number},
        in_flight=number,
        streams=2,
        protocols=[ProtocolFigures("rog", 3, [("PUT", "ok", number)])],
        **more,
    )


def test_counters_and_gauges_are_summed_and_the_longest_uptime_counts() -> None:
    both = together([counted(5, uptime_ms=70), counted(6, uptime_ms=90), GatewayFigures(requests=[("ack", 404, 1)])])
    assert served(both) == {("append", 200): 11, ("diff", 200): 2, ("ack", 404): 1}
    assert (both.gateways, both.in_flight, both.streams, both.uptime_ms) == (2, 11, 4, 90)
    assert both.internal_errors == {"append": 11}
    assert both.protocols == [ProtocolFigures("rog", 6, [("PUT", "ok", 11)])]
    assert together([]) == GatewayFigures()


def test_of_a_gateway_that_has_died_the_counters_stay_once() -> None:
    accounts = Accounts()
    accounts.report("one", counted(5, uptime_ms=70))
    accounts.report("one", counted(7, uptime_ms=80))
    accounts.died("one")
    accounts.died("one")
    left = accounts.others("two", 1)
    assert served(left) == {("append", 200): 7, ("diff", 200): 1}
    assert (left.gateways, left.in_flight, left.streams, left.uptime_ms, left.deaths) == (0, 0, 0, 0, 1)
    assert left.protocols == [ProtocolFigures("rog", 0, [("PUT", "ok", 7)])]
    accounts.report("one", counted(2))
    assert served(accounts.others("two", 1)) == {("append", 200): 9, ("diff", 200): 2}
    assert served(accounts.others("one", 1)) == {("append", 200): 7, ("diff", 200): 1}, "it has its own figures"


def test_sums_of_any_numbers_that_gateways_report_can_be_passed_on() -> None:
    for number in (2**64 - 1, -(2**63)):
        absurd = GatewayFigures(
            number,
            number,
            [("append", 200, number)],
            {"append": number},
            number,
            number,
            number,
            [ProtocolFigures("rog", number, [("PUT", "ok", number)])],
        )
        accounts = Accounts()
        for name in ("one", "two", "three"):
            (heard,) = Decoder().feed(encode(Pong(absurd)))
            assert heard == Pong(absurd)
            accounts.report(name, absurd)
        accounts.died("one")
        shard = ShardFigures(records_written=number, wal=WalFigures(frames_total=number))
        accounts.answered({0: shard, 1: shard})
        answer = OtherFigures(1, accounts.others("four", 1), {}, accounts.counted())
        assert Decoder().feed(encode(answer)) == [answer]
        assert served(answer.figures) == {("append", 200): number}


def test_what_processes_of_a_shard_counted_before_the_last_one_stays() -> None:
    def figures(life: int, frames: int) -> ShardFigures:
        syncs = SyncHistogram((100.0, 500.0), (frames, 0, 1), frames * 0.5)
        return ShardFigures(life=life, wal=WalFigures(frames_total=frames), fsync_us=syncs)

    accounts = Accounts()
    assert accounts.counted() == {}
    accounts.answered({0: figures(1, 7), 1: figures(1, 10)})
    accounts.answered({1: figures(1, 9)})  # an older answer that came later
    accounts.answered({1: figures(3, 2)})
    accounts.answered({1: figures(1, 12)})  # of a process that has ended
    found = accounts.counted()
    assert found["wal_frames_total"] == 7 + 10 + 2
    assert {name: value for name, value in found.items() if name.startswith("fsync")} == {
        "fsync_us 100": 19,
        "fsync_us 500": 0,
        "fsync_us +Inf": 3,
        "fsync_us_sum": 9.5,
    }


def test_what_shards_counted_never_falls_whichever_gateway_hears_of_it_first() -> None:
    for seed in range(200):
        dice = random.Random(seed)
        accounts, lives, counts = Accounts(), [1, 1], [0, 0]
        under_way: list[dict[int, ShardFigures]] = []
        shown = 0.0
        for _ in range(100):
            at = dice.randrange(2)
            match dice.randrange(5):
                case 0:
                    counts[at] += dice.randrange(10)
                case 1 | 2:
                    under_way.append({at: ShardFigures(life=lives[at], records_written=counts[at])})
                case 3 if under_way:
                    accounts.answered(under_way.pop(dice.randrange(len(under_way))))
                case 4 if not dice.randrange(4):
                    lives[at], counts[at] = lives[at] + 1, 0
            now = accounts.counted().get("records_written", 0.0)
            assert now >= shown, f"seed {seed}"
            shown = now


def test_no_counter_falls_whichever_gateway_is_scraped_and_dies() -> None:
    for seed in range(200):
        dice = random.Random(seed)
        accounts, counts = Accounts(), [0, 0, 0]
        shown = 0
        for _ in range(100):
            at = dice.randrange(3)
            name = f"gateway-{at}"
            match dice.randrange(4):
                case 0:
                    counts[at] += dice.randrange(10)
                case 1:
                    accounts.report(name, counted(counts[at]))
                case 2:
                    own = counted(counts[at])
                    accounts.report(name, own)  # the question
                    now = served(together([own, accounts.others(name, 0)]))["append", 200]
                    assert now >= shown, f"seed {seed}"
                    shown = now
                case 3:
                    accounts.died(name)
                    counts[at] = 0
