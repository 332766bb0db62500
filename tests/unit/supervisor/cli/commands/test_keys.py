"""`topics keys` on a file of keys."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from supervisor.cli.main import app
from supervisor.config.keys import parse_file


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "keys"
    monkeypatch.setenv("TOPICS_API_KEYS_FILE", str(path))
    return path


def keys(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["keys", *arguments])
    assert done.exit_code == status, done.output
    return done.stdout if not status else done.output


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def test_a_key_is_made_with_what_it_may_do(file: Path) -> None:
    secret = keys("make", "--scopes", "read+write", "--prefix", "a:", "--prefix", "b.").strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text() == f"{secret}:read+write:a:|b.\n"
    (found,) = [json.loads(line) for line in keys("list", "--json").splitlines()]
    assert found == {"digest": digest(secret), "scopes": "read+write", "prefixes": ["a:", "b."]}
    assert secret not in keys("list")
    assert digest(secret)[:12] in keys("list")


def test_without_a_file_the_entry_is_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TOPICS_API_KEYS_FILE", raising=False)
    (key,) = parse_file(keys("make", "--prefix", "a:").encode(), tmp_path)
    assert key.prefixes == ("a:",)


def test_a_key_is_rotated_and_the_old_one_removed(file: Path) -> None:
    file.write_text("# people\nfirst:read\nsecond\n")
    file.chmod(0o640)
    new = keys("rotate", digest("first")[:10]).strip()
    assert file.read_text() == f"# people\nfirst:read\n{new}:read\nsecond\n"
    keys("rm", digest("first"))
    assert file.read_text() == f"# people\n{new}:read\nsecond\n"
    last = keys("rotate", digest("second"), "--drop").strip()
    assert file.read_text() == f"# people\n{new}:read\n{last}\n"
    assert file.stat().st_mode & 0o777 == 0o640


def test_mistakes_change_nothing(file: Path) -> None:
    file.write_text("only\n")
    for arguments in (("make", "--scopes", "fly"), ("rm", "00"), ("rotate", ""), ("make", "--prefix", "*")):
        keys(*arguments, status=1)
    assert "a service without keys is open" in keys("rm", digest("only"), status=1)
    assert "make another key first" in keys("rm", digest("only"), status=1)
    assert file.read_text() == "only\n"


def test_a_key_may_have_an_end_which_its_successor_has_too(file: Path) -> None:
    secret = keys("make", "--scopes", "read", "--expires", "2999-01-31T12:00:00Z").strip()
    assert file.read_text() == f"{secret}:read expires=2999-01-31T12:00:00Z\n"
    assert json.loads(keys("list", "--json"))["expires"] == "2999-01-31T12:00:00+00:00"
    assert "2999-01-31T12:00:00" in keys("list")
    new = keys("rotate", digest(secret), "--drop").strip()
    assert file.read_text() == f"{new}:read expires=2999-01-31T12:00:00Z\n"
    file.write_text("bare expires=2999-01-31T12:00:00Z\n")
    new = keys("rotate", digest("bare"), "--drop").strip()
    assert file.read_text() == f"{new} expires=2999-01-31T12:00:00Z\n"
    assert "expires= needs" in keys("make", "--expires", "soon", status=1)


def test_the_successor_of_an_expired_key_needs_an_end_of_its_own(file: Path) -> None:
    old = "old:read expires=2020-01-31"
    file.write_text(f"{old}\n")
    assert "would have expired already; give it a later end with --expires" in keys("rotate", digest("old"), status=1)
    for wrong in ("2020-02-01", "soon"):
        keys("rotate", digest("old"), "--expires", wrong, status=1)
    assert file.read_text() == f"{old}\n"
    new = keys("rotate", digest("old"), "--expires", "2999-01-31").strip()
    assert file.read_text() == f"{old}\n{new}:read expires=2999-01-31\n"
    bare = keys("rotate", digest(new), "--drop", "--expires", "2999-02-01T00:00:00+01:00").strip()
    assert file.read_text() == f"{old}\n{bare}:read expires=2999-02-01T00:00:00+01:00\n"
