"""Values that are read without typer: they are what typer would have read, and wrong ones have typer's messages."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
import typer.core
from typer.testing import CliRunner

from supervisor.cli.main import app as whole
from supervisor.cli.plain_values import PlainParam
from supervisor.cli.terminal import read_duration_ms

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def values(
    words: Annotated[list[str] | None, typer.Argument()] = None,
    text: Annotated[str | None, typer.Option()] = None,
    count: Annotated[int, typer.Option(min=1, max=1000)] = 7,
    kind: Annotated[Literal["one", "two"] | None, typer.Option()] = None,
    wait: Annotated[int, typer.Option(parser=read_duration_ms)] = 0,
    flag: Annotated[bool, typer.Option("--flag/--no-flag")] = False,
    tags: Annotated[list[str] | None, typer.Option("--tag")] = None,
    ratio: Annotated[float, typer.Option(min=0)] = 0.5,
    many: Annotated[list[int] | None, typer.Option("--many", max=5)] = None,
    path: Annotated[Path | None, typer.Option()] = None,
    there: Annotated[Path | None, typer.Option(exists=True, dir_okay=False)] = None,
) -> None:
    typer.echo(repr((words, text, count, kind, wait, flag, tags, ratio, many, path, there)))


CASES: list[list[str]] = [
    [],
    ["a", "b c", ""],
    ["--text", "1"],
    ["--text", ""],
    ["--text", "K\u00f8ln"],
    ["--text", "\udcff"],
    ["\udcff"],
    ["--count", "1"],
    ["--count", "0"],
    ["--count", "1001"],
    ["--count", "007"],
    ["--count", "+7"],
    ["--count", " 7"],
    ["--count", "7.0"],
    ["--count", "1_0"],
    ["--count", "\u0663"],
    ["--count", "18446744073709551616"],
    ["--count", "many"],
    ["--count", ""],
    ["--kind", "two"],
    ["--kind", "Two"],
    ["--kind", "three"],
    ["--wait", "2s"],
    ["--wait", "2"],
    ["--wait", "soon"],
    ["--wait", "-1"],
    ["--flag"],
    ["--no-flag"],
    ["--tag", "a", "--tag", "b"],
    ["--ratio", "1"],
    ["--ratio", "-1"],
    ["--ratio", "x"],
    ["--many", "1", "--many", "5"],
    ["--many", "1", "--many", "6"],
    ["--many", "x"],
    ["--path", "/"],
    ["--path", "a b/nothing"],
    ["--path", ""],
    ["--path", "-"],
    ["--path", "\udcff"],
    ["--path", "nul\0byte"],
    ["--path", "/proc/self/mem/x"],
    ["--there", "/"],
    ["--there", "nothing"],
    ["--there", "/etc/passwd"],
]


@pytest.mark.parametrize("arguments", CASES, ids=ascii)
def test_a_value_is_what_typer_reads(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert whole is not None  # its module has put its own in its place
    plain = getattr(typer.core, "build_runtime_param")  # noqa: B009 - no public name
    assert isinstance(plain, partial)
    assert plain.func is PlainParam
    fast = CliRunner().invoke(app, arguments)
    monkeypatch.setattr(typer.core, "build_runtime_param", plain.args[0])
    slow = CliRunner().invoke(app, arguments)
    assert (fast.exit_code, fast.output, repr(fast.exception)) == (slow.exit_code, slow.output, repr(slow.exception))
