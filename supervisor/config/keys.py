"""API keys: where they come from, what an entry means, and that the secrets are gone afterwards.

    key                    everything
    key:scopes             read, write, delete, admin joined by + (or r, w, d, a, rw), all names
    key:scopes:prefixes    only names that begin with one of the prefixes, which are joined by |
    key::prefixes          all scopes, only those names

Entries are separated by commas in TOPICS_API_KEYS, by line ends in the file that TOPICS_API_KEYS_FILE names. Anything
unclear stops the start: a message names the entry by its position, and repeats nothing of it, since what looks
like a scope may be a misplaced secret.

Python cannot wipe a string from memory, and /proc/<pid>/environ shows the environment a program was started with. So no
process that stays ever holds a secret: with TOPICS_API_KEYS, this process passes the digests on in a nameless file and
replaces itself by a new program without the variable; a file is read by a process of its own that says the digests and
ends.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cbor2

from proto.model.keys import ALL_SCOPES, Key, Scope

VARIABLE = "TOPICS_API_KEYS"
FILE_VARIABLE = "TOPICS_API_KEYS_FILE"
PASSED_VARIABLE = "TOPICS_KEYS_FD"
"""Between the two programs that are this process one after the other: which descriptor holds the digests."""
MAX_BYTES = 16 << 20
READ_DEADLINE_S = 10.0

_SECRET = re.compile(rb"[\x21-\x2b\x2d-\x39\x3b-\x7e]+")
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


class KeysError(Exception):
    """Keys that cannot be used. The text says where and what is allowed, never what was there."""


@dataclass(frozen=True, slots=True)
class Keys:
    """`keys` None: nobody is asked for one. `path` is the file they came from and can be read from again."""

    keys: tuple[Key, ...] | None = None
    path: Path | None = None


def parse(entries: Sequence[bytes], where: str) -> tuple[Key, ...]:
    """Raises `KeysError`."""
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
    secret, _, rest = entry.partition(b":")
    scopes, _, prefixes = rest.partition(b":")
    if not secret:
        raise KeysError("it has no key; expected key, key:scopes, key:scopes:prefixes or key::prefixes")
    if _SECRET.fullmatch(secret) is None:
        raise KeysError("the key has a character that is not printable ASCII, or a space or comma")
    return Key(hashlib.sha256(secret).digest(), _parse_scopes(scopes), _parse_prefixes(prefixes))


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


def parse_variable(value: bytes) -> tuple[Key, ...]:
    """Raises `KeysError`."""
    return parse(value.split(b","), VARIABLE)


def parse_file(content: bytes, path: Path) -> tuple[Key, ...]:
    """Empty lines and lines that begin with # are nothing. Raises `KeysError`."""
    lines = [line.strip() for line in content.splitlines()]
    return parse([line for line in lines if line and not line.startswith(b"#")], f"{FILE_VARIABLE}={path}")


def obtain(environment: MutableMapping[str, str]) -> Keys:
    """The keys that the environment configures; their variables are taken out of it. Raises `KeysError`.

    May not return, but run the same command again as a new program of this process, where it does return.
    """
    if (passed := environment.pop(PASSED_VARIABLE, "")).isdecimal():
        return Keys(_receive(int(passed)))
    variables = [name for name in environment if name.upper().startswith("TOPICS_API_KEY")]
    given = {name.upper(): environment.pop(name) for name in variables}
    if unknown := sorted(given.keys() - {VARIABLE, FILE_VARIABLE}):
        # Serving without a check that the operator asked for would be worse than not serving.
        raise KeysError(f"{unknown[0]} means nothing; it must be {VARIABLE} or {FILE_VARIABLE}")
    value, path = given.get(VARIABLE, ""), given.get(FILE_VARIABLE, "")
    if value and path:
        raise KeysError(f"{VARIABLE} and {FILE_VARIABLE} are both set; unset one")
    if path:
        absolute = Path(path).absolute()
        return Keys(read_file(absolute), absolute)
    if not value:
        return Keys()
    _start_over(parse_variable(os.fsencode(value)), environment)
    raise AssertionError("unreachable")


def _encode(keys: Sequence[Key]) -> bytes:
    return cbor2.dumps([key.as_map() for key in keys])


def _decode(data: bytes) -> tuple[Key, ...]:
    try:
        keys = tuple(Key.from_map(fields) for fields in cbor2.loads(data))
    except (cbor2.CBORDecodeError, KeyError, TypeError, ValueError) as error:
        raise KeysError("the digests of the keys did not arrive; start again") from error
    if not keys:
        raise KeysError("the digests of the keys did not arrive; start again")
    return keys


def _start_over(keys: Sequence[Key], environment: MutableMapping[str, str]) -> None:
    """Become a new program, whose memory and environment never held a secret."""
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
    """Have another process read the file; it is gone when this returns. Blocks. Raises `KeysError`."""
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
    """`python -m supervisor.config.keys PATH`: says the digests on standard output, for `read_file`."""
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
