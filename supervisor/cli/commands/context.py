"""`topics context`: names for services."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from supervisor.cli import contexts as file
from supervisor.cli.completers import context_names
from supervisor.cli.terminal import JsonOption, Status, fail, group, say, table, tell

app = group(
    """Names for services: URL and token of each. Other commands use the one in use, or that of --context.

    Exit status: 0 done, 1 not possible, 2 wrong options.
    """
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=context_names)]


@contextmanager
def _changing() -> Iterator[file.Contexts]:
    """The contexts; stored at the end. Errors end the command."""
    path = file.path(os.environ)
    try:
        known = file.load(path)
        yield known
        file.store(path, known)
    except file.ContextError as error:
        fail(str(error), Status.FAILED)


@app.command()
def add(
    name: NameArgument,
    url: Annotated[str, typer.Argument(metavar="URL", help="Such as https://topics.example.com.")],
    token_file: Annotated[
        Path | None, typer.Option(help="The token is the first line of this file, which only you may read.")
    ] = None,
    keyring: Annotated[bool, typer.Option("--keyring", help="Read a token, and keep it in the keyring.")] = False,
    token: Annotated[bool, typer.Option("--token", help="Read a token, and keep it in the file of contexts.")] = False,
) -> None:
    """Add a context, or change one. The first one is in use at once.

    A token, which is an API key of the service, is read from standard input, at a terminal without being shown.
    """
    if sum((token_file is not None, keyring, token)) > 1:
        fail("--token-file, --keyring and --token each say where the token is; give one of them", Status.USAGE)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        fail(f"{url!r} is no URL of a service; write it like https://topics.example.com", Status.USAGE)
    with _changing() as known:
        if token_file is not None:
            file.read_token(token_file)  # tells at once what is wrong with it
        if keyring:
            file.keyring().set_password(file.SERVICE, name, _read_token())
        path = None if token_file is None else str(token_file.absolute())
        known.contexts[name] = file.Context(url.rstrip("/"), _read_token() if token else None, path, keyring)
        known.current = known.current or name
    tell(f"{name}: {url}" + (", in use" if known.current == name else f"; topics context use {name}"))


def _read_token() -> str:
    found = typer.prompt("token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    if not str(found).strip():
        fail("there is no token on standard input", Status.USAGE)
    return str(found).strip()


@app.command()
def use(name: NameArgument) -> None:
    """Use a context from now on."""
    with _changing() as known:
        known.current = name if known.find(name) else None
    tell(f"{name}: {known.contexts[name].url}, in use")


@app.command("ls")
def list_contexts(as_json: JsonOption = False) -> None:
    """List contexts: URLs, and where their tokens are."""
    try:
        known = file.load(file.path(os.environ))
    except file.ContextError as error:
        fail(str(error), Status.FAILED)
    rows: list[dict[str, Any]] = [
        {"context": name, "url": each.url, "token": each.place, "in_use": name == known.current}
        for name, each in sorted(known.contexts.items())
    ]
    if as_json:
        say(*rows)
    else:
        shown = [{**row, "in_use": "*" if row["in_use"] else ""} for row in rows]
        tell(table(shown, ("in_use", "context", "url", "token")))


@app.command("rm")
def remove(name: NameArgument) -> None:
    """Remove a context, and its token from the keyring."""
    with _changing() as known:
        if known.find(name).keyring:
            keyring = file.keyring()
            if keyring.get_password(file.SERVICE, name) is not None:
                keyring.delete_password(file.SERVICE, name)
        del known.contexts[name]
        known.current = None if known.current == name else known.current
    tell(f"{name}: removed")
