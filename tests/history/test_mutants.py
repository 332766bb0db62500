"""Claims about the bars: each finds the errors that it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.hunt import hunted

SLOW_S = 300.0
"""`make mutants` gives each a minute; a machine that runs other tests is slower."""


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_is_found_by_its_bar(tmp_path: Path, mutant: Mutant) -> None:
    found, hunt = hunted(mutant, tmp_path, SLOW_S)
    assert found, hunt
