"""Claims about docs/operations.md: every block of commands works, as printed, in the order of the page."""

from __future__ import annotations

from tests.support.doc_blocks import blocks
from tests.support.machine import MachineError, machine
from tests.support.programs import leave_out

PAGE = "docs/operations.md"


def test_from_an_empty_machine_to_a_service_behind_tls_as_printed() -> None:
    """`tests.support.systemctl` stands in for systemd. test_systemd.py checks the unit's confinement with
    `systemd-analyze`."""
    printed = [block.text for block in blocks(PAGE) if block.kind == "sh" and not block.not_run]
    assert any("pip install ." in block for block in printed)
    said: list[str] = []
    try:
        with machine() as empty:
            for block in printed:
                # Packages come from outside; everything else is among the machine's own processes.
                said.append(empty.run(block, outside="pip install" in block, timeout_s=240))
                print(f"$ {block}{said[-1]}")  # noqa: T201 - shown when the test fails
            asked = empty.run("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:4000/v0/topics")
            assert asked == "401", "the service serves no client without a key"
            owner = empty.run("stat -c '%U %a' /var/lib/topics /run/topics; ps -o user= -C topics | sort -u")
            assert owner.split() == ["topics", "700", "topics", "700", "topics"]
    except MachineError as error:
        leave_out(f"the right to make a machine of overlays ({error})")
    through_tls = next(text for block, text in zip(printed, said, strict=True) if "api hello/diff" in block)
    assert '"it works"' in through_tls
