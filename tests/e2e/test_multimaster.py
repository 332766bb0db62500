"""The claim of `examples/multimaster`: each node sees the others' records, none its own, nothing loops."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from tests.support.service import Service

PATH = Path(__file__).parents[2] / "examples" / "multimaster" / "nodes.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("multimaster_nodes", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_node_sees_the_others_and_not_itself(shared: Service) -> None:
    module = example()
    for name, seen in module.run(shared.url).items():
        assert len(seen) == len(set(seen)) == module.WRITES * 2
        assert {node for node, _ in seen} == set(module.NODES) - {name}
        for other in set(module.NODES) - {name}:
            told = [data for node, data in seen if node == other]
            assert told == [f"{other} says {number}" for number in range(module.WRITES)]


def test_a_ring_comes_to_rest(shared: Service) -> None:
    found = example().ring(shared.url)
    assert sorted(len(records) for records in found.values()) == [3, 3, 3]
