"""What topics status draws."""

from __future__ import annotations

import pytest

from supervisor.cli import terminal, top_view
from supervisor.cli.commands import status
from tests.behaviour.supervisor.test_output import BAD, harmless


def test_no_status_of_a_service_does(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"topic": BAD + "[red]", "records_per_s": 1.0, "records": 1, "bytes": 1, "head_seq": 1}]
    rows[0] |= {"earliest_seq": 1, "lag": None, "queue_ready": None}
    status._drawing().print(top_view.rendered(terminal.clean(rows)))
    told = capsys.readouterr().out
    assert harmless(told)
    assert "forged" in told
