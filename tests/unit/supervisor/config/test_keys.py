"""Claims about entries of keys: the meaning of each form, and that errors never quote an invalid entry."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from proto.model.keys import ALL_SCOPES, Key, Scope
from supervisor.config.keys import (
    VARIABLE,
    Keys,
    KeysError,
    _decode,
    _encode,
    obtain,
    parse,
    parse_file,
    read_file,
)

R, W, D, A = Scope.READ, Scope.WRITE, Scope.DELETE, Scope.ADMIN


def parse_variable(value: bytes) -> tuple[Key, ...]:
    return parse(value.split(b","), VARIABLE)


@pytest.mark.parametrize(
    ("entry", "scopes", "prefixes"),
    [
        (b"k", ALL_SCOPES, ()),
        (b"k:", ALL_SCOPES, ()),
        (b"k::", ALL_SCOPES, ()),
        (b" k ", ALL_SCOPES, ()),
        (b"k:read", R, ()),
        (b"k:read+write", R | W, ()),
        (b"k:r+w+d+a", ALL_SCOPES, ()),
        (b"k:rw", R | W, ()),
        (b"k:rw+delete", R | W | D, ()),
        (b"k:admin+admin", A, ()),
        (b"k:read:tenant42:", R, ("tenant42:",)),
        (b"k:read:tenant42:|shared.", R, ("tenant42:", "shared.")),
        (b"k::a", ALL_SCOPES, ("a",)),
        (b"k:d:x->y", D, ("x->y",)),
    ],
)
def test_all_forms_mean_what_they_say(entry: bytes, scopes: Scope, prefixes: tuple[str, ...]) -> None:
    (found,) = parse_variable(entry)
    assert (found.digest, found.scopes, found.prefixes) == (hashlib.sha256(b"k").digest(), scopes, prefixes)


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b" ",
        b":read",
        b"::tenant",
        b"s3cr3t:reed",
        b"s3cr3t:READ",
        b"s3cr3t:read+",
        b"s3cr3t:+read",
        b"s3cr3t:read write",
        b"s3cr3t:read|write",
        b"s3cr3t:*",
        b"s3cr3t: read",
        b"read:s3cr3t",
        b"s3cr3t:read:*",
        b"s3cr3t:read:tenant*",
        b"s3cr3t:read:a|",
        b"s3cr3t:read:|a",
        b"s3cr3t:read::a",
        b"s3cr3t:read:a b",
        b"s3cr3t:read:-a",
        b"s3cr3t:read:" + b"a" * 256,
        b"s3cr3t with space",
        b"s3cr\xc3\xa9t",
        b"s3cr3t\x00",
    ],
)
def test_anything_else_is_refused_by_position_and_not_repeated(entry: bytes) -> None:
    with pytest.raises(KeysError) as caught:
        parse_variable(b"good," + entry)
    assert "TOPICS_API_KEYS: entry 2 of 2" in str(caught.value)
    assert "s3cr" not in str(caught.value)


def test_one_key_twice_is_refused() -> None:
    with pytest.raises(KeysError, match="entries 1 and 3"):
        parse_variable(b"a:read,b,a:write")


@pytest.mark.parametrize("value", [b",", b"a,", b",a", b"a,,b"])
def test_an_empty_entry_is_refused(value: bytes) -> None:
    with pytest.raises(KeysError, match="it has no key"):
        parse_variable(value)


def test_a_file_has_one_entry_a_line() -> None:
    keys = parse_file(b"# for the dashboard\nk1:read\n\n  k2::a:|b \r\n", Path("keys"))
    assert [key.scopes for key in keys] == [R, ALL_SCOPES]
    assert keys[1].prefixes == ("a:", "b")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"# nothing\n"])
def test_a_file_without_a_key_is_refused(content: bytes) -> None:
    with pytest.raises(KeysError, match="there is no key in it"):
        parse_file(content, Path("keys"))


def test_a_file_is_read_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("k1:read:a\nk2\n")
    environment = {"TOPICS_API_KEYS_FILE": str(path), "PATH": "/bin"}
    found = obtain(environment)
    assert found.path == path
    assert found.keys is not None
    assert [key.prefixes for key in found.keys] == [("a",), ()]
    assert environment == {"PATH": "/bin"}
    path.write_text("k1:reed\n")
    with pytest.raises(KeysError, match=r"entry 1 of 1: scope 1 is none of") as caught:
        read_file(path)
    assert str(path) in str(caught.value)
    with pytest.raises(KeysError, match="No such file"):
        read_file(tmp_path / "missing")


def test_no_variable_or_an_empty_one_is_no_key() -> None:
    assert obtain({}) == Keys(None, None)
    assert obtain({"TOPICS_API_KEYS": "", "TOPICS_API_KEYS_FILE": ""}) == Keys(None, None)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"TOPICS_API_KEYS": "s3cr3t", "TOPICS_API_KEYS_FILE": "/f"}, "both set"),
        ({"TOPICS_API_KEY": "s3cr3t"}, "TOPICS_API_KEY means nothing"),
        ({"topics_api_keys_fiel": "s3cr3t"}, "TOPICS_API_KEYS_FIEL means nothing"),
        ({"TOPICS_KEYS_FD": "9999"}, "TOPICS_KEYS_FD is not for you to set"),
    ],
)
def test_what_was_probably_meant_as_keys_stops_the_start(environment: dict[str, str], says: str) -> None:
    with pytest.raises(KeysError, match=says) as caught:
        obtain(environment)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2027-01-31", 1_801_353_600_000),
        ("2027-01-31T00:00:00Z", 1_801_353_600_000),
        ("2027-01-31T01:00:00+01:00", 1_801_353_600_000),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000),
    ],
)
@pytest.mark.parametrize("entry", ["secret", "secret:read", "secret:read:a:|b:", "secret::a:"])
def test_an_entry_may_have_an_end(entry: str, text: str, ms: int) -> None:
    (without,) = parse([entry.encode()], "here")
    (found,) = parse([f"{entry} \t expires={text}".encode()], "here")
    assert (found, found.expires_ms, without.expires_ms) == (without, ms, 0)
    assert _decode(_encode([found]))[0].expires_ms == ms


@pytest.mark.parametrize(
    "end",
    ["", "tomorrow", "2027-01-31T00:00:00", "1969-01-01", "2027-02-30", "20270131", "99999-01-01", "\xb2027-01-01"],
)
def test_an_end_that_is_not_understood_stops_the_start_and_is_not_repeated(end: str) -> None:
    with pytest.raises(KeysError, match="expires= needs") as caught:
        parse([f"secret expires={end}".encode("latin-1")], "here")
    assert not end or end not in str(caught.value).replace("2027-01-31T12:00:00Z", "")


@pytest.mark.parametrize(
    "entry", [b"secret expires=2027-01-31 expires=2027-01-31", b"secret expired=2027-01-31", b"expires=2027-01-31 x"]
)
def test_no_other_word_stands_behind_an_entry(entry: bytes) -> None:
    with pytest.raises(KeysError):
        parse([entry], "here")
