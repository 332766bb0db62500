"""API keys: reads them from the environment or a file, parses entries, and keeps only digests of the secrets.

    key                    all scopes, all names
    key:scopes             read, write, delete, admin joined by + (or r, w, d, a, rw), all names
    key:scopes:prefixes    only names that begin with one of the prefixes, which are joined by |
    key::prefixes          all scopes, only those names
    … expires=TIME         any of them, after spaces: until that time, such as 2027-01-31 (its beginning, UTC) or
                           2027-01-31T12:00:00+01:00

Entries are separated by commas in TOPICS_API_KEYS, and by line ends in the file that TOPICS_API_KEYS_FILE names. An
invalid entry stops the start. The error names the entry by its position and quotes nothing of it, because text at the
place of a scope may be a misplaced secret.

Python cannot wipe a string from memory, and /proc/<pid>/environ shows the environment at a program's start. Therefore
no long-lived process ever holds a secret:

    TOPICS_API_KEYS         this process writes the digests to an anonymous file (memfd) and replaces itself, by execve,
                            by a new program without the variable
    TOPICS_API_KEYS_FILE    a short-lived process reads the file and prints the digests
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from proto.model.keys import ALL_SCOPES, Key, Scope
from supervisor.errors import SupervisorError

VARIABLE = "TOPICS_API_KEYS"
FILE_VARIABLE = "TOPICS_API_KEYS_FILE"
PASSED_VARIABLE = "TOPICS_KEYS_FD"
"""Environment variable that passes the descriptor of the digests across `execve`."""
MAX_BYTES = 16 << 20
READ_DEADLINE_S = 10.0

_SECRET = re.compile(rb"[\x21-\x2b\x2d-\x39\x3b-\x7e]+")
_EXPIRES = re.compile(rb"[ \t]+expires=([^ \t]*)$")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_PREFIX = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")
_SCOPES = {
    b"read": Scope.READ,
    b"r": Scope.READ,
    b"write": Scope.WRITE,
    b"w": Scope.WRITE,
    b"delete": Scope.DELETE,
    b"d": Scope.DELETE,
    b"admin": Scope.ADMIN,
    b"a": Scope.ADMIN,
    b"rw": Scope.READ | Scope.WRITE,
}


class KeysError(SupervisorError):
    """Keys that cannot be used. The message says where, and which values are allowed; it never quotes the entry."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Configured keys. `keys` is None if no key is required. `path` is their file, which a reload reads again."""

    keys: tuple[Key, ...] | None = None
    path: Path | None = None


def parse(entries: Sequence[bytes], where: str) -> tuple[Key, ...]:
    """Parse entries; `where` names their source in errors. Raises `KeysError`."""
    found: dict[bytes, int] = {}
    keys: list[Key] = []
    for position, entry in enumerate(entries, 1):
        try:
            key = _parse_entry(entry.strip(b" \t\r\n"))
        except KeysError as error:
            raise KeysError(f"{where}: entry {position} of {len(entries)}: {error}") from None
        if (other := found.setdefault(key.digest, position)) != position:
            raise KeysError(f"{where}: entries {other} and {position} have the same key; keep one of them")
        keys.append(key)
    if not keys:
        raise KeysError(f"{where}: there is no key in it; add one, or unset the variable to serve without keys")
    return tuple(keys)


def _parse_entry(entry: bytes) -> Key:
    expires_ms = 0
    if (found := _EXPIRES.search(entry)) is not None:
        entry, expires_ms = entry[: found.start()], parse_time(found[1].decode("latin-1"))
    secret, _, rest = entry.partition(b":")
    scopes, _, prefixes = rest.partition(b":")
    if not secret:
        raise KeysError("it has no key; expected key, key:scopes, key:scopes:prefixes or key::prefixes")
    if _SECRET.fullmatch(secret) is None:
        raise KeysError("the key has a character that is not printable ASCII, or a space or comma")
    return Key(hashlib.sha256(secret).digest(), _parse_scopes(scopes), _parse_prefixes(prefixes), expires_ms)


def parse_time(text: str) -> int:
    """A time since 1970, ms. A date is its beginning, UTC. Raises `KeysError`."""
    try:
        found = datetime.fromisoformat(text)
        if _DATE.fullmatch(text):
            found = found.replace(tzinfo=UTC)
        if found.tzinfo is None:
            raise ValueError
        milliseconds = int(found.timestamp() * 1000)
    except (ValueError, OverflowError):
        milliseconds = 0
    if milliseconds <= 0:
        raise KeysError("expires= needs a date or a time with its zone, such as 2027-01-31 or 2027-01-31T12:00:00Z")
    return milliseconds


def _parse_scopes(field: bytes) -> Scope:
    if not field:
        return ALL_SCOPES
    scopes = Scope(0)
    for position, word in enumerate(field.split(b"+"), 1):
        if (scope := _SCOPES.get(word)) is None:
            raise KeysError(
                f"scope {position} is none of read, write, delete, admin, r, w, d, a, rw (joined by +, lower case)"
            )
        scopes |= scope
    return scopes


def _parse_prefixes(field: bytes) -> tuple[str, ...]:
    if not field:
        return ()
    prefixes: list[str] = []
    for position, prefix in enumerate(field.split(b"|"), 1):
        if _PREFIX.fullmatch(prefix) is None:
            raise KeysError(
                f"prefix {position} is not the beginning of a name (A-Z a-z 0-9 . _ : - >, first a letter or digit; "
                "joined by |, without wildcards)"
            )
        prefixes.append(prefix.decode())
    return tuple(prefixes)


def parse_file(content: bytes, path: Path) -> tuple[Key, ...]:
    """Parse a file of keys. Empty lines and lines that begin with # are ignored. Raises `KeysError`."""
    lines = [line.strip() for line in content.splitlines()]
    return parse([line for line in lines if line and not line.startswith(b"#")], f"{FILE_VARIABLE}={path}")


def obtain(environment: MutableMapping[str, str]) -> Keys:
    """The keys that the environment configures. Removes their variables from it. Raises `KeysError`.

    With TOPICS_API_KEYS this call does not return: it replaces the process by the same command, where it returns.
    """
    if (passed := environment.pop(PASSED_VARIABLE, "")).isdecimal():
        return Keys(_receive(int(passed)))
    variables = [name for name in environment if name.upper().startswith("TOPICS_API_KEY")]
    given = {name.upper(): environment.pop(name) for name in variables}
    if unknown := sorted(given.keys() - {VARIABLE, FILE_VARIABLE}):
        # A misspelt variable must not start the service without the keys that the operator configured.
        raise KeysError(f"{unknown[0]} means nothing; it must be {VARIABLE} or {FILE_VARIABLE}")
    value, path = given.get(VARIABLE, ""), given.get(FILE_VARIABLE, "")
    if value and path:
        raise KeysError(f"{VARIABLE} and {FILE_VARIABLE} are both set; unset one")
    if path:
        absolute = Path(path).absolute()
        return Keys(read_file(absolute), absolute)
    if not value:
        return Keys()
    _start_over(parse(os.fsencode(value).split(b","), VARIABLE), environment)
    raise AssertionError("unreachable")


def _encode(keys: Sequence[Key]) -> bytes:
    return msgspec.msgpack.encode(keys)


def _decode(data: bytes) -> tuple[Key, ...]:
    try:
        if keys := msgspec.msgpack.decode(data, type=tuple[Key, ...]):
            return keys
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    raise KeysError("the digests of the keys did not arrive; start again")


def _start_over(keys: Sequence[Key], environment: MutableMapping[str, str]) -> None:
    """Replace this process by a new program whose memory and environment never held a secret."""
    descriptor = os.memfd_create("topics-keys", 0)
    os.write(descriptor, _encode(keys))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(
        sys.executable,
        [sys.executable, *sys.orig_argv[1:]],
        {**environment, PASSED_VARIABLE: str(descriptor)},
    )


def _receive(descriptor: int) -> tuple[Key, ...]:
    try:
        data = os.pread(descriptor, MAX_BYTES, 0)
        os.close(descriptor)
    except OSError as error:
        raise KeysError(f"{PASSED_VARIABLE} is not for you to set; unset it") from error
    return _decode(data)


def read_file(path: Path) -> tuple[Key, ...]:
    """Read the file in another process, which has ended when this returns. Blocks. Raises `KeysError`."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "supervisor.config.keys", str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=READ_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KeysError(f"{FILE_VARIABLE}={path} could not be read: {type(error).__name__}") from error
    if done.returncode == 2:
        raise KeysError(done.stderr.decode(errors="replace").strip())
    if done.returncode:
        raise KeysError(f"{FILE_VARIABLE}={path} could not be read: its reader ended with {done.returncode}")
    return _decode(done.stdout)


def main() -> int:
    """`python -m supervisor.config.keys PATH`: writes the digests to standard output, for `read_file`."""
    path = Path(sys.argv[1])
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES)
        sys.stdout.buffer.write(_encode(parse_file(content, path)))
    except OSError as error:
        sys.stderr.write(f"{FILE_VARIABLE}={path}: {error.strerror}")
        return 2
    except KeysError as error:
        sys.stderr.write(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
