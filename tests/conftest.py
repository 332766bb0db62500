"""Fixtures for all tests, and the promise that no service outlives the session."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator, MutableMapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

from tests.support.programs import java_home, leave_out
from tests.support.service import ALIVE, Service

LACKING = ("records_missing", "topics_missing")
"""Events that say that a shard lacks what was written to it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=0, help="schedules of a simulation; 0: as many as it runs by itself")


def pytest_configure() -> None:
    """A run that is told to end (a cancelled CI job) ends as by Ctrl-C: fixtures are torn down, services with them."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make runs in the background ignore it
    # A deadline for an example is a timed assertion: a busy machine would miss it.
    settings.register_profile("topics", deadline=None)
    settings.load_profile("topics")
    try:
        distribution("pyspark-topics")
    except PackageNotFoundError:
        # Not installed by itself: then Spark's workers, and commands that tests run elsewhere, take it from here.
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory for sockets, whose paths have at most 107 bytes. `tmp_path` has names of the user and the test."""
    with tempfile.TemporaryDirectory(prefix="topics-t") as directory:
        yield Path(directory)


@pytest.fixture
def new_service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Makes services, each with data and log under `tmp_path`; they are killed when the test ends."""
    made: list[Service] = []

    def make(directory: Path | None = None, **options: Any) -> Service:
        made.append(Service(directory or tmp_path, **options))
        return made[-1]

    yield make
    for service in made:
        service.close()
    assert not [line for service in made for line in service.log_text().splitlines() if any(map(line.count, LACKING))]


@pytest.fixture
def service(new_service: Callable[..., Service]) -> Service:
    """A running service with two shards."""
    return new_service().start()


@pytest.fixture(autouse=True)
def _plain_tracebacks() -> None:
    """structlog's default shows every local variable of a traceback, which takes seconds on a busy machine."""
    if not structlog.is_configured():
        console = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
        structlog.configure(processors=[_adding_up, *structlog.get_config()["processors"][:-1], console])


def _adding_up(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The sums of a shard add up in every test, but in those that capture the log."""
    assert event["event"] not in LACKING, event
    return event


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of Spark take longest, so they begin first: else the run waits for them in the end."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark"):
        os.environ["JAVA_HOME"] = java_home() or leave_out("Java 17 or later")


SHOWN = pytest.StashKey[list[str]]()
"""Lines that long tests have the summary show."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """tools/check.sh, which may run pytest more than once, makes one line of what was left out, and of why."""
    path = os.environ.get("TESTS_LEFT_OUT")
    if path and not hasattr(terminalreporter.config, "workerinput"):
        with open(path, "a") as file:
            for report in terminalreporter.stats.get("skipped", []):
                reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "something"
                print(reason.removeprefix("Skipped: "), file=file)
    for line in terminalreporter.config.stash.get(SHOWN, []):
        terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        for running in ALIVE:
            report.sections.append((f"log of the service in {running.directory}", running.log_tail(80)))
    return report


@pytest.fixture(scope="session", autouse=True)
def _no_orphans() -> Iterator[None]:
    yield
    left = list(ALIVE)
    for running in left:
        running.close()
    assert not left, f"services left by tests: {[str(s.directory) for s in left]}"
