"""`topics status` and `topics top`: show the state of the service, once or repeatedly."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from supervisor.cli import status_view as service_status
from supervisor.cli import top_view as busiest
from supervisor.cli.endpoint import ContextOption, TokenOption, UrlOption, resolve
from supervisor.cli.terminal import JsonOption, Status, clean, fail, read_seconds, say
from supervisor.client.http_client import Refused, Unavailable

SHORTEST_S = 0.1


def _interval(given: str | float) -> float:
    found = read_seconds(given)
    if found < SHORTEST_S:
        raise typer.BadParameter(f"{given}: must be {SHORTEST_S} seconds or more")
    return found


IntervalOption = Annotated[
    float, typer.Option(parser=_interval, metavar="DURATION", help="Time between two samples: seconds, or with a unit.")
]


def status(
    url: UrlOption = None,
    token: TokenOption = None,
    context: ContextOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    interval: IntervalOption = 2.0,
    as_json: JsonOption = False,
) -> None:
    """Show the state of the service: processes, phases, shards, lag of consumers, log and disk.

    Exit status: 0 ready, 1 the token was refused, 2 wrong options, 3 not ready or not reachable.
    """
    endpoint = resolve(url, token, context)
    with endpoint.client() as client:

        def look() -> dict[str, Any]:
            return service_status.gather(client, endpoint.again())

        if watch:
            _repeat(look, service_status.rendered, interval, as_json)
            return
        found = look()
    if as_json:
        say(found)
    else:
        _drawing().print(service_status.rendered(clean(found)))
    if found["state"] != "ready":
        raise typer.Exit(Status.UNAVAILABLE)
    if found["problems"]:
        raise typer.Exit(Status.FAILED)


def top(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only topics with this prefix.")] = "",
    url: UrlOption = None,
    token: TokenOption = None,
    context: ContextOption = None,
    most: Annotated[int, typer.Option("--most", "-n", min=1, help="Number of topics.")] = 20,
    once: Annotated[bool, typer.Option("--once", help="Take two samples, print, and exit.")] = False,
    interval: IntervalOption = 2.0,
    as_json: JsonOption = False,
) -> None:
    """Show the topics that grow fastest, until Ctrl-C; once if the output is not a terminal.

    With --json, one object per topic. Exit status: 0 shown, 1 refused, 2 wrong options, 3 not ready or not reachable.
    """
    with resolve(url, token, context).client() as client:
        try:
            before = busiest.look(client, prefix, time.monotonic())

            def look() -> list[dict[str, Any]]:
                nonlocal before
                now = busiest.look(client, prefix, time.monotonic())
                rows = busiest.rates(before, now, most)
                before = now
                return rows

            time.sleep(interval)
            if as_json or once or not sys.stdout.isatty():
                rows = look()
                if as_json:
                    say(*rows)
                else:
                    _drawing().print(busiest.rendered(clean(rows)))
                return
            _repeat(look, busiest.rendered, interval, False)
        except Refused as error:
            fail(str(error), Status.FAILED)
        except Unavailable as error:
            fail(str(error), Status.UNAVAILABLE)


def _repeat(look: Callable[[], Any], rendered: Callable[[Any], RenderableType], interval: float, as_json: bool) -> None:
    """Print repeatedly until Ctrl-C, which exits with status 0."""
    try:
        while as_json or not sys.stdout.isatty():
            if as_json:
                say(look())
            else:
                _drawing().print(rendered(clean(look())))
            time.sleep(interval)
        with Live(rendered(clean(look())), screen=True, auto_refresh=False, console=_drawing()) as live:
            while True:
                time.sleep(interval)
                live.update(rendered(clean(look())), refresh=True)
    except KeyboardInterrupt:
        raise typer.Exit(Status.DONE) from None


def _drawing() -> Console:
    """A console to which what others wrote is no markup."""
    return Console(markup=False, emoji=False)
