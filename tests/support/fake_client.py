"""A client of a service that is not there: commands get the answers that a test lists, and their calls are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Self

import pytest
from click.testing import Result
from typer.testing import CliRunner

from supervisor.cli import remote
from supervisor.cli.main import app


class FakeClient:
    """`answers` are those of a method by its name: a value, an error to raise, or a function of the arguments."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.calls: list[tuple[Any, ...]] = []
        """Name and arguments of each call; named ones are one map at its end, if there are any."""

    def __getattr__(self, name: str) -> Any:
        async def called(*given: Any, **named: Any) -> Any:
            self.calls.append((name, *given, *([named] if named else [])))
            answer = self._answers[name]
            found = answer(*given, **named) if callable(answer) else answer
            if isinstance(found, Exception):
                raise found
            return found

        return called

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class Commands:
    """Runs commands of `topics` against a `FakeClient`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def run(self, client: FakeClient, *arguments: str, given: str | None = None) -> Result:
        self._monkeypatch.setattr(remote, "AsyncClient", lambda *_, **__: client)
        return CliRunner().invoke(app, [*arguments, "--url", "http://fake.example"], input=given)

    def lines(self, client: FakeClient, *arguments: str) -> Iterator[Any]:
        """What a command prints with --json, which must succeed."""
        done = self.run(client, *arguments, "--json")
        assert done.exit_code == 0, done.output
        return map(json.loads, done.stdout.splitlines())
