"""Claims about when spans are made. tests/e2e/test_tracing.py checks their content."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.observe import tracing


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "True"}, False),
    ],
)
def test_opentelemetrys_own_variables_switch_it_on(environment: dict[str, str], wanted: bool) -> None:
    assert tracing.wanted(environment) is wanted


def test_without_the_packages_the_log_says_so_and_the_service_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(tracing, "import_module", absent)
    with capture_logs() as lines:
        assert tracing.load() is None
    assert (lines[0]["event"], lines[0]["remedy"]) == (
        "no_spans",
        "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
    )


@pytest.mark.slow
def test_a_setting_it_does_not_take_is_an_error_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "99")
    with capture_logs() as lines:
        assert tracing.load() is None
    assert [(line["event"], line["log_level"]) for line in lines] == [("no_spans", "error")]
