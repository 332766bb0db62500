"""Claims about the broken versions of the product's classes."""

from __future__ import annotations

import inspect
from types import FunctionType, ModuleType

import pytest

from tests.simulation import broken_machines, broken_replicas, broken_treasurers


def broken_classes(module: ModuleType) -> list[type]:
    return [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]


@pytest.mark.parametrize("module", [broken_machines, broken_replicas, broken_treasurers])
def test_a_broken_class_overrides_what_the_product_has(module: ModuleType) -> None:
    """A method that nothing calls any more, since the product has renamed its own, breaks no rule."""
    classes = broken_classes(module)
    assert classes
    for broken in classes:
        changed = [name for name, value in vars(broken).items() if isinstance(value, FunctionType | property)]
        assert changed
        for name in changed:
            assert any(hasattr(base, name) for base in broken.__bases__), f"{broken.__name__}.{name}"
