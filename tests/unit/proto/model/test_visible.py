"""What others wrote is harmless where it is printed."""

from __future__ import annotations

import io
import json
import sys

import pytest
import structlog

import pyspark_topics.visible
from proto.model.visible import visible
from proto.process import log

CHARACTERS = [chr(number) for number in range(0x110000)]


def test_no_character_that_a_terminal_obeys_is_left() -> None:
    changed = "".join(each for each in CHARACTERS if visible(each) != each)
    bidi = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    controls = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
    surrogates = "".join(map(chr, range(0xD800, 0xE000)))
    assert changed == "".join(sorted(controls + bidi + "\u2028\u2029" + surrogates))
    assert visible(changed).isprintable()
    assert len(visible("a".join(CHARACTERS)).splitlines()) == 1


def test_emoji_and_letters_of_all_languages_stay() -> None:
    text = 'né 漢字 שלום 👩\u200d👩\u200d👧 \xa0 \\ "'
    assert visible(text) == text


def test_json_stays_the_same_json() -> None:
    value = {"".join(CHARACTERS[:0xD800]): "\x1b[2J\r\n\u2028"}
    assert json.loads(visible(json.dumps(value, ensure_ascii=False))) == value


def test_the_package_that_is_installed_alone_has_the_same() -> None:
    assert pyspark_topics.visible._UNSAFE.pattern == sys.modules["proto.model.visible"]._UNSAFE.pattern  # type: ignore[attr-defined]
    assert pyspark_topics.visible.visible("\x1b") == visible("\x1b") == "\\u001b"


@pytest.mark.parametrize("form", ["logfmt", "journal", "json", "console"])
def test_no_value_in_the_log_forges_a_line_or_moves_the_cursor(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    bad = "tag\x1b[2J\r\nevent=forged\u2028x\x9b0m\x7f"
    try:
        logger = log.configure("supervisor", "info", form)
        logger.info("seen", tag=bad, others=[bad])
        try:
            raise ValueError(bad)
        except ValueError:
            logger.exception("failed", error=bad)
    finally:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()
    told = stream.getvalue()
    if form == "console":
        assert "\x1b[2J" not in told
        assert not {"\r", "\u2028", "\x9b", "\x7f"} & set(told)
        return
    assert not any(ord(each) < 32 or each in "\u2028\x9b\x7f" for each in told.replace("\n", ""))
    assert told.count("\n") == 2
