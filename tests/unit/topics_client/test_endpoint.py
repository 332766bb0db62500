"""Which service a client asks and which token it sends, and that the command line finds the same in the same files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import typer

from supervisor.cli import endpoint as command_line
from tests.support.context_files import ENVIRONMENTS, FILES, KEYS, PROD, all_kinds, contexts, written
from topics_client import AsyncClient, Client
from topics_client.endpoint import resolve

OTHER = "https://other.example"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.upper().startswith("TOPICS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def at(url: str | None = None, token: str | None = None, context: str | None = None) -> tuple[str, str | None]:
    return resolve(url, token, context, os.environ)


def test_without_anything_it_is_the_service_on_port_4000_and_no_token() -> None:
    assert at() == ("http://127.0.0.1:4000", None)


def test_arguments_come_before_the_environment_and_that_before_contexts(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts(home, "prod", prod={"url": PROD, "token": "of-prod"}, test={"url": "http://test", "token": "of-test"})
    assert at() == (PROD, "of-prod")
    monkeypatch.setenv("TOPICS_CONTEXT", "test")
    assert at() == ("http://test", "of-test")
    assert at(context="prod") == (PROD, "of-prod")
    monkeypatch.setenv("TOPICS_URL", OTHER)
    assert at() == (OTHER, None)
    monkeypatch.setenv("TOPICS_TOKEN", "of-other")
    assert at() == (OTHER, "of-other")
    assert at(token="mine") == (OTHER, "mine")
    assert at("http://here", "mine") == ("http://here", "mine")
    assert at(token="") == (OTHER, None)
    with pytest.raises(ValueError, match="url and context"):
        at(PROD, context="prod")


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        (OTHER, True),
        (OTHER + "/", True),
        ("https://OTHER.example:443/below", True),
        (PROD, False),
        ("http://other.example", False),
        ("https://other.example:4000", False),
        ("https://other.example.evil", False),
        ("https://other.example@evil", False),
        ("https://evil/?https://other.example", False),
    ],
)
def test_the_token_of_the_environment_goes_only_where_topics_url_points(
    monkeypatch: pytest.MonkeyPatch, asked: str, sent: bool
) -> None:
    monkeypatch.setenv("TOPICS_URL", OTHER)
    monkeypatch.setenv("TOPICS_TOKEN", "secret")
    assert at(asked) == (asked, "secret" if sent else None)


def test_the_token_of_the_environment_goes_to_the_url_of_the_program_if_no_other_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOPICS_TOKEN", "secret")
    assert at(PROD) == (PROD, "secret")


def test_the_token_of_a_context_goes_to_no_other_url(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts(home, "prod", prod={"url": PROD, "token": "of-prod"}, bare={"url": "http://bare"})
    assert at(OTHER) == (OTHER, None)
    monkeypatch.setenv("TOPICS_URL", OTHER)
    assert at() == (OTHER, None)
    monkeypatch.setenv("TOPICS_TOKEN", "of-other")
    assert at(context="bare") == ("http://bare", None)


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "line\r\nX-Evil: 1", "caf\u00e9", "\x00", "a\u2028b"])
def test_a_token_that_no_header_can_have_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="the token has") as raised:
        AsyncClient("http://fake", token)
    assert token not in str(raised.value)


@pytest.mark.parametrize("url", ["localhost:4000", "ftp://a", "http://", "http://a:99999", "http://[::1", "", " "])
def test_what_is_no_url_is_told_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of a service"):
        AsyncClient(url)


@pytest.mark.parametrize("options", [{"token": 1}, {"key": b"k"}, {"url": 4000}, {"context": 0}])
def test_what_is_no_text_is_told_by_its_name(options: dict[str, Any]) -> None:
    name = next(iter(options)).replace("key", "token")
    for client in (Client, AsyncClient):
        with pytest.raises(TypeError, match=f"^{name} is a str, not "):
            client(**options)


async def test_token_and_its_old_name_are_sent_and_not_both_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def take(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers.get("Authorization"))
        return httpx.Response(200, json={})

    monkeypatch.setenv("TOPICS_TOKEN", "env")
    for options in ({"token": "a"}, {"key": "b"}, {}, {"token": ""}):
        async with AsyncClient("http://fake", transport=httpx.MockTransport(take), **options) as client:  # type: ignore[arg-type]
            await client.state("t")
    assert sent == ["Bearer a", "Bearer b", "Bearer env", None]
    for kind in (AsyncClient, Client):
        with pytest.raises(TypeError, match="token and key"):
            kind("http://fake", token="a", key="b")


def outcome(find: Any, *given: str | None) -> Any:
    try:
        found = find(*given)
        return found if isinstance(found, tuple) else (found.url, found.token)
    except (ValueError, typer.Exit):
        return "refused"


def by_command_line(url: str | None, token: str | None, context: str | None) -> Any:
    return command_line.resolve(url, token, context, local=False)


def both(url: str | None, token: str | None, context: str | None) -> Any:
    """What both find. Where nothing is named, the command line has another default: the service that runs here."""
    ours, theirs = outcome(at, url, token, context), outcome(by_command_line, url, token, context)
    assert ours == theirs, (url, token, context)
    return ours


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_command_line_finds_the_same_url_and_key(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, environment: dict[str, str]
) -> None:
    all_kinds(home, name)
    keyring = ModuleType("keyring")
    keyring.get_password = lambda service, context: f"{service}-{context}"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    found = both(None, None, None)
    if not environment:
        told = {"here": "here", "file": "k", "spaces": "k", "keyring": "topics-keyring", "none": None}
        assert found == ((PROD, told[name]) if name in told else "refused")
    both(None, "mine", None)
    if "TOPICS_URL" not in environment:  # then a context that is named has another service than the variables
        both(None, None, name)
        monkeypatch.setenv("TOPICS_CONTEXT", name)
        both(None, None, None)


@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_none_of_contexts_are_refused_by_both(home: Path, kind: str) -> None:
    written(home / "topics" / "contexts.json", FILES[kind])
    assert outcome(at, None, None, None) == (("http://127.0.0.1:4000", None) if kind == "none in use" else "refused")
    assert both(None, None, "here") == (("http://a", "k") if kind == "none in use" else "refused")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_may_read_or_write_is_refused_by_both(home: Path, mode: int) -> None:
    contexts(home, "prod", prod={"url": PROD}).chmod(mode)
    assert both(None, None, None) == "refused"
    with pytest.raises(ValueError, match="chmod 600"):
        Client()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused_by_both(home: Path) -> None:
    os.chown(contexts(home, "prod", prod={"url": PROD}), 12345, -1)
    assert both(None, None, None) == "refused"


def test_a_keyring_that_is_missing_or_has_no_key_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts(home, "prod", prod={"url": PROD, "keyring": True})
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ValueError, match="pip install keyring"):
        at()
    keyring = ModuleType("keyring")
    keyring.get_password = lambda *_: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    with pytest.raises(ValueError, match="no key"):
        at()
