"""`topics keys`: the file of API keys of a service. Nothing but a new key is ever printed; others are known by digests.

Each change replaces the file as a whole, with its owner and permissions, and is checked by the parser that the service
uses.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from proto.model.keys import ALL_SCOPES, Key, Scope
from supervisor.cli.terminal import JsonOption, Status, complain, fail, group, say, table, tell
from supervisor.config.keys import FILE_VARIABLE, KeysError, parse_file

app = group(
    """API keys of a service, in the file that TOPICS_API_KEYS_FILE names to the service.

    A running service reads its file again at SIGHUP (systemctl reload topics). Exit status: 0 done, 1 not possible, 2
    wrong options.
    """
)
SHOWN = 12
"""Characters of a digest: as many as tell keys apart. The log of requests has the beginning of the same digest."""
FileOption = Annotated[Path, typer.Option("--file", envvar=FILE_VARIABLE, metavar="FILE", help="The file of keys.")]
ScopesOption = Annotated[str, typer.Option(help="read, write, delete, admin, joined by +; all without it.")]
PrefixOption = Annotated[list[str] | None, typer.Option(help="Only topics that begin so; may be repeated.")]
ExpiresOption = Annotated[
    str, typer.Option(metavar="TIME", help="When it ends, such as 2027-01-31 or 2027-01-31T12:00:00Z.")
]
DigestArgument = Annotated[str, typer.Argument(metavar="DIGEST", help="The beginning of a digest, as `list` shows it.")]


@app.command()
def make(
    scopes: ScopesOption = "",
    prefix: PrefixOption = None,
    file: Annotated[
        Path | None, typer.Option("--file", envvar=FILE_VARIABLE, metavar="FILE", help="Add it to this file.")
    ] = None,
    expires: ExpiresOption = "",
) -> None:
    """Make a key, and print it. With --file, add it to the file of a service; else its entry is printed too."""
    secret = secrets.token_hex(32)
    prefixes = "|".join(prefix or [])
    entry = f"{secret}:{scopes}:{prefixes}" if prefixes else f"{secret}:{scopes}" if scopes else secret
    entry += f" expires={expires}" if expires else ""
    if file is None:
        _checked([entry], Path("the new key"))
        tell(entry)
        return
    _store(file, [*_lines(file, missing=True), entry])
    tell(secret)


@app.command("list")
def list_keys(file: FileOption, as_json: JsonOption = False) -> None:
    """List digests of keys with their scopes and prefixes."""
    rows = [_row(key) for key in _checked(_lines(file), file)]
    if as_json:
        say(*rows)
    else:
        for row in rows:
            row |= {"digest": row["digest"][:SHOWN], "prefixes": " ".join(row["prefixes"]) or "all"}
            row |= {"expires": row.get("expires", "never")}
        tell(table(rows, ("digest", "scopes", "prefixes", "expires")))


@app.command()
def rotate(
    digest: DigestArgument,
    file: FileOption,
    drop: Annotated[bool, typer.Option("--drop", help="Remove the old key at once.")] = False,
    expires: ExpiresOption = "",
) -> None:
    """Make a key with the scopes, the prefixes and the end of another one, and print it.

    The old key stays valid, so that clients can change one after the other; remove it with `topics keys rm`. If it has
    expired, give the new key an end of its own with --expires.
    """
    lines = _lines(file)
    place = _find(lines, digest, file)
    secret = secrets.token_hex(32)
    old = re.split("[: \t]", lines[place].strip(), maxsplit=1)[0]
    new = secret + lines[place].strip()[len(old) :]
    if expires:
        new = re.sub("[ \t]+expires=[^ \t]*$", "", new) + f" expires={expires}"
    now_ms = time.time_ns() // 1_000_000
    if _checked([new], Path("the new key"))[0].expired(now_ms):
        fail("the new key would have expired already; give it a later end with --expires", Status.FAILED)
    ended = _checked([lines[place]], file)[0].expired(now_ms)
    lines[place : place + 1] = [new] if drop else [lines[place], new]
    _store(file, lines)
    if not drop:
        state = "has expired; remove it with" if ended else "stays valid until"
        complain(f"the old key {state}: topics keys rm {digest}")
    tell(secret)


@app.command("rm")
def remove(digest: DigestArgument, file: FileOption) -> None:
    """Remove a key."""
    lines = _lines(file)
    del lines[_find(lines, digest, file)]
    _store(file, lines)
    tell(f"{digest}: removed")


def _row(key: Key) -> dict[str, Any]:
    names = [str(scope.name).lower() for scope in Scope if scope in key.scopes]
    return {
        "digest": key.digest.hex(),
        "scopes": "all" if key.scopes == ALL_SCOPES else "+".join(names),
        "prefixes": list(key.prefixes),
        **({"expires": datetime.fromtimestamp(key.expires_ms / 1000, UTC).isoformat()} if key.expires_ms else {}),
    }


def _lines(file: Path, *, missing: bool = False) -> list[str]:
    try:
        return file.read_text().splitlines()
    except FileNotFoundError:
        if missing:
            return []
        fail(f"there is no file {file}; `topics keys make --file {file}` makes one", Status.FAILED)
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file} cannot be read: {error}", Status.FAILED)


def _checked(lines: list[str], file: Path) -> tuple[Key, ...]:
    try:
        return parse_file("\n".join(lines).encode(), file)
    except KeysError as error:
        fail(str(error), Status.FAILED)


def _find(lines: list[str], digest: str, file: Path) -> int:
    """The line of the only key whose digest begins so. Ends the command if there are none or several."""
    entries = [n for n, line in enumerate(lines) if line.strip() and not line.strip().startswith("#")]
    keys = _checked(lines, file)
    found = [n for n, key in zip(entries, keys, strict=True) if key.digest.hex().startswith(digest.lower())]
    if len(found) != 1 or not digest:
        fail(
            f"{len(found)} keys have a digest that begins with {digest!r}; `topics keys list` shows them", Status.FAILED
        )
    return found[0]


def _store(file: Path, lines: list[str]) -> None:
    if any(line.strip() for line in lines):
        _checked(lines, file)
    else:
        fail(f"{file} would have no key, and a service without keys is open; make another key first", Status.FAILED)
    try:
        descriptor, making = tempfile.mkstemp(dir=file.absolute().parent)
        with open(descriptor, "w") as writing:
            writing.write("\n".join(lines) + "\n")
            if file.exists():
                old = file.stat()
                os.fchown(writing.fileno(), old.st_uid, old.st_gid)
                os.fchmod(writing.fileno(), old.st_mode & 0o777)
        os.replace(making, file)
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}", Status.FAILED)
    complain("a running service takes it up at SIGHUP: systemctl reload topics")
