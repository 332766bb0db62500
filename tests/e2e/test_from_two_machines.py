"""A claim about docs/howto/several-machines.md: a service of two machines becomes one of several while it is used."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.e2e.test_forwarding import HEARS, PATIENCE_S
from tests.e2e.test_machines import SHARDS, TTL_MS, Load, serves, spread
from tests.e2e.test_roles import machine, stands_by
from tests.support.service import Service, until


def restarted_with_the_setting(running: Service) -> None:
    assert running.stop(timeout_s=PATIENCE_S) == 0
    running.environment |= HEARS
    running.start(wait=False)


def test_from_two_machines_to_three_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    settings = {"TOPICS_SHARDS": str(SHARDS), "TOPICS_TERM_TTL_MS": str(TTL_MS)}
    with ExitStack() as stack:
        one, two = machine(tmp_path, "one", **settings), machine(tmp_path, "two", **settings)
        three = machine(tmp_path, "three", **settings, **HEARS)
        for each in (one, two, three):
            stack.callback(each.close)
        one.start(wait=False)
        until(lambda: serves(one), "a holder", PATIENCE_S)
        two.start(wait=False)
        until(lambda: stands_by(two), "a standby", PATIENCE_S)
        with Load(one, two) as load:
            restarted_with_the_setting(two)
            until(lambda: stands_by(two) and list(tmp_path.glob("bucket/members/*")), "a standby again", PATIENCE_S)
            load.goes_on()
            assert one.held() == set(range(SHARDS))
            assert stands_by(two), "it does not reach the holder, so a proxy sends everything there"
            restarted_with_the_setting(one)
            until(lambda: spread(one, two) and serves(one) and serves(two), "two machines that serve", PATIENCE_S)
            load.goes_on()  # what was asked meanwhile is over
            failed = {topic: len(each) for topic, each in load.failed.items()}
            three.start(wait=False)
            until(lambda: spread(one, two, three) and serves(three), "an even spread", PATIENCE_S)
            load.goes_on()
        more = {topic: each[failed[topic] :] for topic, each in load.failed.items()}
        assert not any(more.values()), f"a join costs no error: {more}"
        load.check(one, two, three)
        for each in (one, two, three):
            assert "Traceback" not in each.log_text()
