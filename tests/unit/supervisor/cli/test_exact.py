"""JSON is printed with its digits and order."""

from __future__ import annotations

import pytest

from supervisor.cli import exact


@pytest.mark.parametrize(
    "text",
    ["9.90", "123456789012345678901234567890", '{"b":1,"a":[1.0,-0.50]}', '"ä\\u0000"', "1E+400", '"\\ud800"', "null"],
)
def test_json_is_printed_with_its_digits_and_order(text: str) -> None:
    assert exact.dumps(exact.loads(text)) == text
