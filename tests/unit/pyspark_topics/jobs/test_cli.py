"""`topics-spark` before Spark starts, and its messages for exceptions of Spark."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from pyspark_topics.jobs import cli


def test_options_of_spark_may_stand_on_both_sides_of_the_job() -> None:
    audit = ["audit", "--path", "/d"]
    parse = cli.parser().parse_args
    assert parse(audit).master == ""
    assert parse(["--master", "local[1]", *audit]).master == "local[1]"
    assert parse([*audit, "--master", "local[2]"]).master == "local[2]"
    assert parse(["--master", "local[1]", *audit, "--master", "local[2]"]).master == "local[2]"
    given = parse(["--conf", "a=1", *audit, "--conf", "b=2", "--conf", "c=3"])
    assert [*given.conf, *given.more_conf] == ["a=1", "b=2", "c=3"]


def test_a_token_of_the_environment_goes_to_the_service_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def token(*job: str) -> str | None:
        return cli._options(cli.parser().parse_args(job)).get("token")

    monkeypatch.setenv("TOPICS_TOKEN", "variable")
    monkeypatch.delenv("TOPICS_URL", raising=False)
    assert token("report", "--url", "http://b.example") == "variable"
    monkeypatch.setenv("TOPICS_URL", "http://a.example")
    assert token("report", "--url", "http://A.example:80/") == "variable"
    assert token("report", "--url", "https://a.example") is None
    assert token("report", "--url", "http://b.example") is None
    assert token("report", "--url", "http://b.example", "--token", "option") == "option"
    assert token("report", "--path", "/d") is None


@pytest.mark.slow
@pytest.mark.parametrize("hung", [False, True])
def test_a_service_that_is_down_is_told_within_ten_seconds(
    hung: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # while it does not listen, it refuses, and no other process gets the port
        if hung:
            listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        began = time.monotonic()
        assert cli.main(["report", "--url", url]) == 2
        assert time.monotonic() - began < 10
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"topics-spark report: GET {url}/v0/health: given up after ")
    assert caplog.records[0].getMessage().startswith(f"{url}: "), "said meanwhile"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one line", "ValueError: one line"),
        ("", "ValueError: "),
        ("failed\npyspark_topics.errors.CorruptFile: x.log\nat org.x\nCaused by: java.E: y", "CorruptFile: x.log"),
        (
            "An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: Job aborted\n"
            "\tat org.x\nCaused by: java.io.IOException: Mkdirs failed\n\t... 3 more",
            "java.io.IOException: Mkdirs failed",
        ),
        (
            "Job failed:\nTraceback (most recent call last):\n  File x\nZeroDivisionError: by zero\n",
            "ZeroDivisionError: by zero",
        ),
    ],
)
def test_an_error_is_told_in_the_line_that_names_its_cause(text: str, said: str) -> None:
    assert cli._sentence(ValueError(text)).endswith(said)
