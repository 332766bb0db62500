"""Commands that ask a service: a decorator gives them the options of the connection, a client, and errors as text.

Unavailable, throttled, not ready     status 3: the service did not answer within --patience
any other error of the service        status 1, with its code and what to do
Ctrl-C                                status 1, "interrupted"; commands that run until then end with 0
the reader of a pipe went away        status 1, nothing is printed
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import anyio
import typer

from supervisor.cli import exact
from supervisor.cli.endpoint import (
    TOKEN_REMEDY,
    ContextOption,
    Endpoint,
    PatienceOption,
    TokenOption,
    UrlOption,
    resolve,
)
from supervisor.cli.terminal import JsonOption, Status, complain, fail, table, tell
from supervisor.client.python_client import AsyncClient, NotFound, TopicsError, Unauthorized, Unavailable
from supervisor.errors import SupervisorError

AGAIN_S = 1.0
"""How long after a Ctrl-C another one is not one of its own."""
PATIENCE_S = 3.0
"""For commands that look; those that write, read to the end or run on have more."""
_REMEDIES = {
    "unauthorized": TOKEN_REMEDY,
    "forbidden": "use a token that may do it; docs/keys.md has the scopes",
    "topic_not_found": "`topics ls` lists those there are",
    "router_not_found": "`topics routers ls` lists those there are",
    "cursor_not_found": "`topics cursors ls TOPIC` lists those there are",
    "not_a_queue": "`topics queues ls` lists the queues, `topics create NAME --queue` makes one",
    "topic_not_empty": "leave --if-empty out, or delete its records first",
}


@dataclass(frozen=True, slots=True)
class Remote:
    """A command's access to its service: a client, and how to print."""

    client: AsyncClient
    endpoint: Endpoint
    as_json: bool

    def print(self, found: Any, *lines: str) -> None:
        """Print one result: as JSON with --json, else its lines, if there are any."""
        if self.as_json:
            tell(exact.dumps(found))
        else:
            tell(*lines)

    def print_rows(self, rows: list[Any], titles: dict[str, str]) -> None:
        """Print a list: one JSON object a line, or a table with the columns of `titles`."""
        if self.as_json:
            for row in rows:
                tell(exact.dumps(row))
        else:
            tell(table([{title: row.get(name) for name, title in titles.items()} for row in rows], [*titles.values()]))


Command = Callable[..., Awaitable[None]]


def remote(
    patience_s: float = PATIENCE_S, *, endless: bool = False, local: bool = False
) -> Callable[[Command], Callable[..., None]]:
    """A decorator for coroutine functions whose first parameter is a `Remote`. `endless` ones end by Ctrl-C, and
    `local` ones want to know whether the service runs here."""

    def decorated(command: Command) -> Callable[..., None]:
        @functools.wraps(command)
        def run(url: Any, token: Any, context: Any, patience: float, as_json: bool, **given: Any) -> None:
            endpoint = resolve(url, token, context, local=local)
            with failures(endpoint.url, Status.DONE if endless else Status.FAILED):
                anyio.run(_ask, command, endpoint, patience, as_json, given)

        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        shown = [*own, *_shared(patience_s)]
        vars(run)["__signature__"] = inspect.Signature(shown)
        run.__annotations__ = {each.name: each.annotation for each in shown}
        return run

    return decorated


def _shared(patience_s: float) -> list[inspect.Parameter]:
    """The options of every command that asks a service."""
    options = {"url": UrlOption, "token": TokenOption, "context": ContextOption}
    every: list[tuple[str, Any, Any]] = [(name, kind, None) for name, kind in options.items()]
    every += [("patience", PatienceOption, patience_s), ("as_json", JsonOption, False)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, keyword, default=default, annotation=kind) for name, kind, default in every]


@contextmanager
def _interruptible() -> Iterator[None]:
    """Context in which what comes right behind a first Ctrl-C, as from `timeout`, does not disturb the orderly end. A
    later one ends the process at once."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    theirs: Callable[[int, FrameType | None], Any] = before
    first: float | None = None

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            theirs(number, frame)
        elif time.monotonic() > first + AGAIN_S:
            os._exit(128 + number)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        # At its very end, Python would let the signal end the process.
        signal.signal(signal.SIGINT, theirs if first is None else signal.SIG_IGN)


async def _ask(command: Command, endpoint: Endpoint, patience_s: float, as_json: bool, given: dict[str, Any]) -> None:
    endpoint.client().close()  # ends the command if the URL is invalid
    tell_warnings()
    options: Any = {"patience_s": patience_s, "loads": exact.loads}
    with _interruptible():
        async with AsyncClient(endpoint.url, endpoint.token or "", **options) as client:
            await command(Remote(client, endpoint, as_json), **given)
    sys.stdout.flush()


class _Told(logging.Handler):
    """Prints what the client logs, without tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


def tell_warnings() -> None:
    logger = logging.getLogger("topics_client")
    logger.handlers, logger.propagate = [_Told()], False
    logging.getLogger("topics_client.connection").setLevel(logging.INFO)  # that the service is back, too


@contextmanager
def failures(url: str, interrupted: Status = Status.FAILED) -> Iterator[None]:
    """Context that reports errors as a sentence and an exit status."""
    try:
        yield
    except TopicsError as error:
        _fail(error, url)
    except BaseExceptionGroup as group:
        first = _first(group)
        if isinstance(first, TopicsError):
            _fail(first, url)
        raise first from None
    except KeyboardInterrupt:
        if interrupted is not Status.DONE:
            complain("interrupted")
        raise typer.Exit(interrupted) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader closed the pipe: flush to nowhere
        raise typer.Exit(Status.FAILED) from None
    except (SupervisorError, ValueError, OSError) as error:
        fail(str(error), Status.FAILED)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


def _fail(error: TopicsError, url: str) -> None:
    status = Status.UNAVAILABLE if error.transient else Status.FAILED
    if isinstance(error, Unavailable):
        fail(f"{url} does not answer ({error}); start it with `topics serve`, or name another with --url", status)
    remedy = _REMEDIES.get(error.code, "try again later, or with more --patience" if error.transient else "")
    code = "" if isinstance(error, NotFound | Unauthorized) else f" {error.code}"
    fail(f"the service answered {error.status}{code}: {error.message}" + (f"; {remedy}" if remedy else ""), status)
