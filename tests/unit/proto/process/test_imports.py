"""Imports without modules that a library imports just in case."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from proto.process.imports import Later, instead

NAME = "topics_test_module"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text("import sys\nsys.topics_test_ran = True\nvalue = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "topics_test_ran", False, raising=False)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield
    sys.modules.pop(NAME, None)


@pytest.mark.usefixtures("module")
def test_a_module_is_as_good_as_missing_within_the_context_only() -> None:
    with instead(NAME, None), pytest.raises(ImportError):
        __import__(NAME)
    assert __import__(NAME).value == 7


@pytest.mark.usefixtures("module")
def test_a_loaded_module_stays() -> None:
    loaded = __import__(NAME)
    with instead(NAME, None):
        assert __import__(NAME) is loaded
    assert sys.modules[NAME] is loaded


@pytest.mark.usefixtures("module")
def test_a_module_for_later_runs_at_its_first_use() -> None:
    with instead(NAME, Later(NAME)):
        module = __import__(NAME)
    assert NAME not in sys.modules
    assert not sys.topics_test_ran  # type: ignore[attr-defined]
    assert module.value == 7
    assert sys.topics_test_ran  # type: ignore[attr-defined]
