"""The figures of gateways: what each counts, and their sums. A scrape of any gateway shows those of all.

    gateway → supervisor    Pong(figures), about once a second
    gateway → supervisor    FiguresWanted(number, figures, …) at each scrape
    supervisor → gateway    OtherFigures(number, figures, …): the others, and what gateways that have died had counted

The gateway that is scraped shows the figures that it has sent with its question, plus those of the answer. So the
supervisor knows every number that was ever shown, and no counter falls: neither when the next scrape reaches another
gateway, nor when one dies. What a gateway counts after its last message and before its death is lost. Only while the
supervisor does not answer, a scrape may show less than one of another gateway before it.

A shard that is away counts with what it answered last, whichever gateway had asked: the question has what the shards
answered, without rows, and names those that did not answer; the answer has the latest figures of these.

What is counted over all shards is the sum over all processes that they had on this machine since the supervisor began,
each with the most that it has answered. So it does not fall either: not when a shard is started again, and counts from
0, nor when another machine takes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import reduce

from msgspec import Struct
from msgspec.structs import replace

from proto.ipc.figures import ShardFigures


class ProtocolFigures(Struct, frozen=True, array_like=True):
    """Of a protocol other than HTTP."""

    name: str
    connections: int = 0
    commands: list[tuple[str, str, int]] = []
    """(command, result, number)."""


class GatewayFigures(Struct, frozen=True, array_like=True):
    """Of one gateway, or of several together."""

    gateways: int = 0
    """How many of them live."""
    deaths: int = 0
    """How often one died without being asked to end."""
    requests: list[tuple[str, int, int]] = []
    """(operation, status, number)."""
    internal_errors: dict[str, int] = {}
    in_flight: int = 0
    streams: int = 0
    uptime_ms: int = 0
    """Of the one that has lived longest."""
    protocols: list[ProtocolFigures] = []


def served(figures: GatewayFigures) -> Counter[tuple[str, int]]:
    """The requests by operation and status."""
    return Counter({(operation, status): number for operation, status, number in figures.requests})


def together(all_of_them: Iterable[GatewayFigures]) -> GatewayFigures:
    """The sums."""
    every = list(all_of_them)
    requests: Counter[tuple[str, int]] = Counter()
    errors: Counter[str] = Counter()
    protocols: dict[str, list[ProtocolFigures]] = {}
    for each in every:
        requests.update(served(each))
        errors.update(each.internal_errors)
        for protocol in each.protocols:
            protocols.setdefault(protocol.name, []).append(protocol)
    return GatewayFigures(
        gateways=_sum(each.gateways for each in every),
        deaths=_sum(each.deaths for each in every),
        requests=[(*key, _sendable(number)) for key, number in requests.items()],
        internal_errors={operation: _sendable(number) for operation, number in errors.items()},
        in_flight=_sum(each.in_flight for each in every),
        streams=_sum(each.streams for each in every),
        uptime_ms=max((each.uptime_ms for each in every), default=0),
        protocols=[_protocol(name, found) for name, found in protocols.items()],
    )


def _protocol(name: str, found: list[ProtocolFigures]) -> ProtocolFigures:
    commands: Counter[tuple[str, str]] = Counter()
    for each in found:
        commands.update({(command, result): number for command, result, number in each.commands})
    return ProtocolFigures(
        name,
        _sum(each.connections for each in found),
        [(*key, _sendable(number)) for key, number in commands.items()],
    )


def _sum(numbers: Iterable[int]) -> int:
    return _sendable(sum(numbers))


def _sendable(number: int) -> int:
    """The nearest number that a message can have. A gateway that reports nonsense must not end the supervisor, which
    passes the sums on."""
    return max(-(1 << 63), min(number, (1 << 64) - 1))


def ended(figures: GatewayFigures) -> GatewayFigures:
    """What stays of a gateway that has died: its counters."""
    protocols = [replace(each, connections=0) for each in figures.protocols]
    return replace(figures, gateways=0, in_flight=0, streams=0, uptime_ms=0, protocols=protocols)


def _added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in (*one, *other)}


class Accounts:
    """The supervisor's side: the latest figures of each gateway by name, those of the dead, and what shards have
    answered. A gateway has one too, of what they have answered to it."""

    def __init__(self) -> None:
        self._latest: dict[str, GatewayFigures] = {}
        self._ended = GatewayFigures()
        self.shards: dict[int, ShardFigures] = {}
        """What each shard has answered last."""
        self._living: dict[int, tuple[int, dict[str, float]]] = {}
        """By shard, its last incarnation that has answered, and the counters of this one."""
        self._past: dict[str, float] = {}
        """The counters of the incarnations before."""

    def report(self, name: str, figures: GatewayFigures) -> None:
        self._latest[name] = figures

    def died(self, name: str) -> None:
        """The gateway's process is gone. A second call does nothing."""
        if (figures := self._latest.pop(name, None)) is not None:
            self._ended = together([self._ended, ended(figures)])

    def answered(self, shards: Mapping[int, ShardFigures]) -> None:
        """What shards have answered. It may come late, after a newer answer to another gateway."""
        self.shards |= shards
        for index, figures in shards.items():
            counters = figures.counters()
            life, before = self._living.get(index, (figures.life, counters))
            if figures.life < life:
                continue
            if figures.life > life:
                self._past = _added(self._past, before)
            else:
                counters = {name: max(number, before.get(name, 0.0)) for name, number in counters.items()}
            self._living[index] = figures.life, counters

    def counted(self) -> dict[str, float]:
        """As `ShardFigures.counters`, of all shards. None ever falls."""
        return reduce(_added, (counters for _, counters in self._living.values()), self._past)

    def others(self, name: str, deaths: int) -> GatewayFigures:
        """The figures of all but the gateway `name`, with the number of `deaths` of all."""
        living = [figures for each, figures in self._latest.items() if each != name]
        return replace(together([self._ended, *living]), deaths=deaths)
