"""Files of contexts of many kinds, for the tests that compare the clients with the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PROD = "https://prod.example"
KEYS = {
    "here": {"url": PROD, "token": "here"},
    "file": {"url": PROD, "token_file": "{home}/key"},
    "spaces": {"url": PROD, "token_file": "{home}/spaces"},
    "keyring": {"url": PROD, "keyring": True},
    "none": {"url": PROD, "token": None, "token_file": None, "keyring": False},
    "absent": {"url": PROD, "token_file": "{home}/absent"},
    "open": {"url": PROD, "token_file": "{home}/open"},
    "empty": {"url": PROD, "token_file": "{home}/empty"},
    "binary": {"url": PROD, "token_file": "{home}/binary"},
    "directory": {"url": PROD, "token_file": "{home}"},
    "unknown": None,
}
"""Contexts by where their keys are."""
ENVIRONMENTS = [{}, {"TOPICS_TOKEN": "env"}, {"TOPICS_URL": PROD}, {"TOPICS_URL": PROD, "TOPICS_TOKEN": "env"}]
FILES = {
    "of another shape": "[]",
    "no JSON": "{",
    "without contexts": '{"current": "here"}',
    "without one in use": '{"contexts": {"here": {"url": "http://a"}}}',
    "null": '{"current": "here", "contexts": null}',
    "a list of contexts": '{"current": "here", "contexts": []}',
    "a context that is text": '{"current": "here", "contexts": {"here": "http://a"}}',
    "a context without a URL": '{"current": "here", "contexts": {"here": {}}}',
    "one in use that is not there": '{"current": "here", "contexts": {}}',
    "none in use": '{"current": null, "contexts": {"here": {"url": "http://a", "token": "k"}}}',
    "empty": "",
}


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def contexts(home: Path, current: str | None = None, **known: dict[str, Any]) -> Path:
    file = {"current": current, "contexts": known}
    return written(home / "topics" / "contexts.json", json.dumps(file))


def all_kinds(home: Path, current: str) -> None:
    """A context for each of `KEYS`, with the files of its key; `current` is in use."""
    file = contexts(home, current, **{name: known for name, known in KEYS.items() if known is not None})
    file.write_text(file.read_text().replace("{home}", str(home)))
    for name, text, mode in (("key", "k\nsecond\n", 0o600), ("spaces", "  k  \r\n", 0o400), ("open", "k", 0o644)):
        written(home / name, text, mode)
    written(home / "empty", "\n")
    written(home / "binary", "").write_bytes(b"\xff\xfe")
