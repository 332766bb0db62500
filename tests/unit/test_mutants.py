"""Claims about the mutants: each still fits the product. `make mutants` has the bars find them."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.catalogue import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_edit_of_a_mutant_fits_and_is_python(mutant: Mutant) -> None:
    for edit in mutant.edits:
        source = (ROOT / edit.path).read_text()
        changed = edit.applied(source)
        assert changed != source
        ast.parse(changed)
