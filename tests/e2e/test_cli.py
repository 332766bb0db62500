"""The commands that ask a service, as processes, with a real one: what they do, and what they say of mistakes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from supervisor.cli.main import app
from tests.support.service import Service, until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"
COMMAND = [sys.executable, "-m", "supervisor.cli"]


@pytest.fixture
def environment(shared: Service, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "topics").write_text(f'#!/bin/sh\nexec {sys.executable} -m supervisor.cli "$@"\n')
    (bin / "topics").chmod(0o755)
    return {
        **kept,
        "TOPICS_URL": shared.url,
        "XDG_CONFIG_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{bin}:{kept['PATH']}",
    }


class Topics:
    def __init__(self, environment: dict[str, str], directory: Path) -> None:
        self.environment = environment
        self.directory = directory
        self.stderr = ""

    def __call__(self, *arguments: str, given: str | None = None, status: int = 0) -> str:
        """Run a command, in this process if it needs no standard input: starting one takes half a second."""
        if given is None:
            unset = dict.fromkeys(name for name in os.environ if name.startswith("TOPICS_"))
            told = CliRunner().invoke(app, list(arguments), prog_name="topics", env={**unset, **self.environment})
            assert told.exit_code == status, told.output
            assert isinstance(told.exception, SystemExit | None)
            self.stderr = told.stderr
            return told.stdout
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment,
            cwd=self.directory,
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        self.stderr = done.stderr
        return done.stdout

    def json(self, *arguments: str, **options: Any) -> list[Any]:
        return [json.loads(line) for line in self(*arguments, "--json", **options).splitlines()]

    @contextmanager
    def running(self, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on."""
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.directory,
            **options,
        )
        deadline = threading.Timer(60, process.kill)
        deadline.start()
        with process:
            try:
                yield process
            finally:
                deadline.cancel()
                process.kill()


@pytest.fixture
def topics(environment: dict[str, str], tmp_path: Path) -> Topics:
    return Topics(environment, tmp_path)


def test_what_is_published_is_read_with_its_digits(topics: Topics) -> None:
    line = '{"id":1,"total":9.90,"n":123456789012345678901234567890}'
    told = topics("publish", "pub", line, "plain text", "--tag", "a", "--meta", '{"m":1}')
    assert told == "pub: 2 records, seqs 1 to 2, topic made\n"
    (told,) = topics.json("publish", "pub", "3", "--key", "once")
    assert (told["count"], told["deduped"]) == (1, False)
    assert topics.json("publish", "pub", "3", "--key", "once")[0]["deduped"] is True
    assert topics("publish", "pub", given=f"{line}\n\n[1.0]") == "pub: 2 records, seqs 4 to 5\n"
    assert topics("publish", "pub", "--text", given="any { line\n") == "pub: 1 record, seq 6\n"
    assert topics("read", "pub", "--data").splitlines() == [line, '"plain text"', "3", line, "[1.0]", '"any { line"']
    first = topics.json("read", "pub")[0]
    assert (first["seq"], first["tag"], first["meta"]) == (1, "a", {"m": 1})
    assert [record["seq"] for record in topics.json("read", "pub", "--tag", "a", "--where", "id=1")] == [1]
    assert "\x1b" not in topics("read", "pub")


def test_what_is_read_as_json_can_be_published(topics: Topics) -> None:
    topics("publish", "copy:a", '{"n":1.50}', "x", "--tag", "t", "--meta", '{"m":2}')
    topics("publish", "copy:b", "--records", given=topics("read", "copy:a", "--json"))
    a, b = (topics.json("read", name) for name in ("copy:a", "copy:b"))
    for name in ("data", "tag", "meta"):
        assert [record[name] for record in a] == [record[name] for record in b]


def test_many_lines_are_all_published(topics: Topics) -> None:
    lines = "".join(f"{n}\n" for n in range(25_000))
    assert topics.json("publish", "many", given=lines)[0]["count"] == 25_000
    assert topics("read", "many", "--data") == lines
    assert topics("read", "many", "-n", "12000", "--data") == lines[: lines.index("12000\n")]


def test_a_dash_is_standard_input(topics: Topics) -> None:
    topics("publish", "dash", "-", given="1\n2\n")
    topics("publish", "dash", "--text", "-")
    assert topics("read", "dash", "--data") == '1\n2\n"-"\n'


def test_lines_are_sent_as_they_come(topics: Topics) -> None:
    with topics.running("publish", "slow", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write("1\n")
        process.stdin.flush()
        until(lambda: '"slow"' in topics("ls", "slow", "--json"), "the first line to be there", 30)
        process.stdin.close()
        process.stdin = None
        assert process.wait(30) == 0


def test_mistakes_of_publish_are_told_in_a_sentence(topics: Topics) -> None:
    topics("publish", "wrong", given='1\n2\n{"a"\n4\n', status=1)
    assert re.search(r"^topics: line 3 is not what it should be: .*--text any text$", topics.stderr, re.MULTILINE)
    assert "topics: 2 records were published" in topics.stderr
    assert topics("read", "wrong", "--data") == "1\n2\n"
    topics("publish", "wrong", '{"a"', status=2)
    assert "--text sends it as text" in topics.stderr
    topics("publish", "wrong", "1", "--meta", "[]", status=2)
    topics("publish", "wrong", "1", "--records", status=2)
    topics("publish", "no such name", "1", status=1)
    assert "topics: the service answered 400 invalid_request" in topics.stderr
    topics("publish", "not-made", "1", "--no-create", status=1)
    assert "`topics ls` lists those there are" in topics.stderr


def test_gaps_are_told_and_make_the_status_4(topics: Topics) -> None:
    topics("create", "capped", "--cap-records", "3")
    for n in range(8):
        topics("publish", "capped", str(n))
    assert topics("read", "capped", "--data", status=4) == "5\n6\n7\n"
    assert "topics: capped: records 1 to 5 are lost (cap)" in topics.stderr
    assert topics.json("tail", "capped", "--from", "0", status=4)[0]["gap"]["last_seq"] == 5
    topics("publish", "refilled", "--records", given=topics("read", "capped", "--json", status=4))
    assert topics("read", "refilled", "--data") == "5\n6\n7\n"


def test_a_cursor_goes_on_where_the_last_read_ended(topics: Topics) -> None:
    topics("publish", "cur", "1", "2", "3")
    topics("cursors", "set", "cur", "me", "1")
    assert topics("read", "cur", "--cursor", "me", "-n", "1", "--commit", "--data") == "2\n"
    assert topics("read", "cur", "--cursor", "me", "--commit", "--data") == "3\n"
    assert topics("read", "cur", "--cursor", "me", "--commit", "--data") == ""
    assert [(each["cursor"], each["seq"], each["lag"]) for each in topics.json("cursors", "ls", "cur")] == [
        ("me", 3, 0)
    ]
    assert "moves back only with --force" in topics("cursors", "set", "cur", "me", "1")
    topics("cursors", "set", "cur", "me", "1", "--force")
    assert topics("cursors", "rm", "cur", "me") == "me: deleted\n"
    assert topics("cursors", "rm", "cur", "me") == "me: is not there\n"
    topics("cursors", "set", "cur", "..", "1")
    assert topics("cursors", "rm", "cur", "..") == "..: deleted\n"  # of the path, it would leave the topic's own
    assert topics("cursors", "rm", "cur", "..") == "..: is not there\n"
    assert topics("read", "cur", "--data") == "1\n2\n3\n"


def test_a_tail_goes_on_until_ctrl_c(topics: Topics) -> None:
    topics("publish", "tail:a", *map(str, range(20)))
    topics("publish", "tail:b", '{"k":1}')
    assert topics("tail", "tail:a", "-n", "2", "--data") == "18\n19\n"
    assert {each["topic"] for each in topics.json("tail", "tail:a", "tail:b", "-n", "1")} == {"tail:a", "tail:b"}
    with topics.running("tail", "-f", "tail:a", "tail:b", "--from", "0", "--json", "--grep", "new") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines: list[dict[str, Any]] = []
        topics("publish", "tail:a", "not this")
        topics("publish", "tail:b", "new", "--tag", "x")
        lines.append(json.loads(process.stdout.readline()))
        assert (lines[0]["topic"], lines[0]["data"], lines[0]["tag"]) == ("tail:b", "new", "x")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


def test_an_interrupt_that_comes_twice_is_one(topics: Topics) -> None:
    """As from `timeout -s INT`, which signals the process and its group."""
    topics("publish", "twice", "1")
    for pause_s in (0.0005, 0.002, 0.005, 0.02):
        with topics.running("tail", "-f", "twice", "--data") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "1\n"
            process.send_signal(signal.SIGINT)
            time.sleep(pause_s)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
            assert process.stderr.read() == ""


def test_a_tail_with_a_cursor_goes_on_behind_what_it_printed(topics: Topics) -> None:
    topics("publish", "tail:c", "1", "2")
    with topics.running("tail", "-f", "tail:c", "--cursor", "me", "--from", "0", "--data") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
        topics("publish", "tail:c", "3")
        assert process.stdout.readline() == "3\n"
        until(lambda: topics.json("cursors", "ls", "tail:c")[0]["seq"] >= 2, "the cursor to move", 30)


def test_a_closed_pipe_is_the_quiet_end(topics: Topics) -> None:
    topics("publish", "pipe", given="".join(f'"{"x" * 100}{n}"\n' for n in range(5000)))
    done = subprocess.run(
        ["bash", "-c", "topics read pipe | head -n 1; exit ${PIPESTATUS[0]}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=topics.environment,
    )
    assert (done.returncode, len(done.stdout.splitlines()), done.stderr) == (1, 1, "")


def test_a_terminal_gets_colors(topics: Topics, environment: dict[str, str]) -> None:
    topics("publish", "colors", "1", "--tag", "x")
    ours, theirs = pty.openpty()
    with subprocess.Popen([*COMMAND, "read", "colors"], stdout=theirs, env=environment | {"TERM": "xterm"}) as process:
        os.close(theirs)
        shown = os.read(ours, 4096)
        process.wait(30)
    os.close(ours)
    assert b"\x1b[36mx\x1b[0m" in shown


def test_the_exit_status_decides_about_a_job(topics: Topics, tmp_path: Path) -> None:
    topics("create", "work", "--queue", "--max-deliveries", "2", "--dead-letter", "work:dead")
    topics("publish", "work", *map(str, range(6)), "--tag", "t")
    script = f'read n; echo "$n $JOB_SEQ $JOB_TAG $JOB_DELIVERIES" >> {tmp_path}/seen; test $n != 4'
    topics("work", "work", "--exec", script, "-c", "3", "--drain")
    seen = sorted((tmp_path / "seen").read_text().splitlines())
    assert seen == sorted([f"{n} {n + 1} t 1" for n in range(6)] + ["4 5 t 2"])
    assert "job 5 of work failed at delivery 1" in topics.stderr
    assert "topics: work: 5 jobs done, 2 attempts failed" in topics.stderr
    assert topics("read", "work:dead", "--data") == "4\n"
    (depth,) = topics.json("queues", "ls", "work*")
    assert (depth["topic"], depth["ready"], depth["dead_lettering"], depth["dead_lettered"]) == ("work", 0, 0, 1)
    assert topics("queues", "redrive", "work:dead", "work") == "work: 1 dead letter is a job again\n"
    (job,) = topics.json("queues", "peek", "work")
    assert (job["data"], job["state"]) == (4, "ready")
    assert "ready" in topics("queues", "peek", "work")
    topics("queues", "peek", "no-such-topic", status=1)
    assert "`topics ls` lists those there are" in topics.stderr


def test_a_dead_letter_says_why_and_how_many_there_are(topics: Topics) -> None:
    topics("create", "why", "--queue", "--max-deliveries", "2", "--dead-letter", "why:dead")
    topics("publish", "why", "1", "--tag", "t")
    script = r"printf 'first\nlast \033[31m line\n\n' >&2; exit 7"
    topics("work", "why", "--exec", script, "--drain", given="")
    assert "first\nlast \x1b[31m line\n\n" in topics.stderr  # the command's own, as it was written
    told = topics.stderr.splitlines()
    assert any("job 1 of why failed at delivery 1, the next is in" in line for line in told)
    assert any("job 1 of why failed at delivery 2, the last: it is a dead letter now" in line for line in told)
    assert told[-1] == "topics: why: 0 jobs done, 2 attempts failed"
    reason = "exit status 7: last \x1b[31m line"
    (letter,) = topics.json("queues", "peek", "why:dead")
    assert letter == {
        "seq": 1, "queue": "why", "deliveries": 2, "reason": reason, "tag": "t", "data": 1,
    }  # fmt: skip
    assert "exit status 7: last \\u001b[31m line" in topics("queues", "peek", "why:dead")
    assert (topics.json("queues", "ls", "why")[0]["dead_letters"], topics("queues", "ls", "why").split()[-3:]) == (
        1, ["1", "why:dead", "-"],
    )  # fmt: skip
    assert topics("queues", "redrive", "why:dead", "why") == "why: 1 dead letter is a job again\n"
    assert topics.json("queues", "ls", "why")[0]["dead_letters"] == 0


def test_a_failed_job_says_why_until_it_is_done(topics: Topics, tmp_path: Path) -> None:
    topics("create", "again", "--queue")
    topics("publish", "again", "1")
    with topics.running("work", "again", "--exec", "sleep 600 & echo no such mailbox >&2; exit 3") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "no such mailbox\n"
        assert "failed at delivery 1" in process.stderr.readline()
        until(lambda: topics.json("queues", "peek", "again")[0]["state"] == "delayed", "the nack", 30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert topics.json("queues", "peek", "again")[0]["reason"] == "exit status 3: no such mailbox"
    assert "exit status 3: no such mailbox" in topics("queues", "peek", "again")


def test_a_command_may_leave_its_input_and_take_the_whole_record(topics: Topics, tmp_path: Path) -> None:
    topics("create", "whole", "--queue")
    topics("publish", "whole", given=json.dumps("x" * 500_000))
    topics("work", "whole", "--exec", "exit 0", "--drain")
    topics("publish", "whole", '{"n":1.50}')
    topics("work", "whole", "--exec", f"cat > {tmp_path}/record", "--record", "--drain")
    assert '"data":{"n":1.50}' in (tmp_path / "record").read_text()


def test_sigterm_lets_a_command_finish_and_the_grace_ends_it(topics: Topics, tmp_path: Path) -> None:
    topics("create", "term", "--queue")
    topics("publish", "term", "1")
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with topics.running("work", "term", "--exec", f"echo began; cat {fifo} > /dev/null") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        process.send_signal(signal.SIGTERM)
        fifo.write_text("go")
        assert process.wait(30) == 0
    assert topics.json("show", "term")[0]["count"] == 0
    topics("publish", "term", "2")
    script = f"echo began; sleep 600 & echo $! > {tmp_path}/pid; wait"
    with topics.running("work", "term", "--exec", script, "--grace", "0") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), "the pid")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    child = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}")
    until(lambda: not child.exists() or "State:\tZ" in (child / "status").read_text(), "the command's child to be gone")
    assert topics.json("queues", "ls", "term")[0]["ready"] == 1


def test_topics_are_made_shown_changed_and_deleted(topics: Topics) -> None:
    assert topics("create", "adm:a", "--ttl", "7d", "--cap-bytes", "1MiB") == "adm:a: created\n"
    assert topics("create", "adm:a", "--ttl", "7d") == "adm:a: is there already, nothing changed\n"
    assert topics("create", "adm:a", "--ttl", "1h", "--set", "priority=5") == "adm:a: changed: ttl_ms, priority\n"
    (state,) = topics.json("show", "adm:a")
    assert (state["config"]["ttl_ms"], state["config"]["cap_bytes"]) == (3_600_000, 1 << 20)
    topics("publish", "adm:b", "1", "2", "3", "--tag", "x")
    assert [each["topic"] for each in topics.json("ls", "adm:")] == ["adm:a", "adm:b"]
    assert [each["topic"] for each in topics.json("ls", "adm*b")] == ["adm:b"]
    assert topics("ls", "adm:b").splitlines()[0].split() == ["topic", "records", "bytes", "head"]
    assert topics("rm", "adm:b", "--before", "2", "--yes") == "adm:b: 1 record deleted\n"
    assert topics("rm", "adm:b", "--tag", "x*", "--yes") == "adm:b: 2 records deleted\n"
    topics("rm", "adm:a", status=2)
    assert "--yes" in topics.stderr
    assert topics("rm", "adm:a", "adm:b", "--yes") == "adm:a: deleted\nadm:b: deleted\n"
    assert topics("rm", "adm:a", "--yes") == "adm:a: is not there\n"


def test_routers_copy(topics: Topics) -> None:
    assert topics("routers", "add", "r1", "rt:a", "rt:b", "--tag", "x:*") == "r1: rt:a to rt:b, made\n"
    topics("publish", "rt:a", "1", "--tag", "x:1")
    topics("publish", "rt:a", "2", "--tag", "y")
    until(lambda: topics("read", "rt:b", "--data") == "1\n", "the copy", 30)
    assert [each["router"] for each in topics.json("routers", "ls", "--from", "rt:a")] == ["r1"]
    assert "exactly" in topics("routers", "add", "r2", "rt:b", "rt:c", "--exactly-once") + topics(
        "routers", "show", "r2"
    )
    topics("routers", "add", "r3", "rt:c", "rt:a", status=1)
    assert "router_cycle" in topics.stderr
    assert topics("routers", "rm", "r1") == "r1: deleted\n"


def test_the_bench_leaves_nothing(topics: Topics) -> None:
    (told,) = topics.json("bench", "--seconds", "0.1", "--batch", "50", "--concurrency", "4")
    assert [load["what"].split(",")[0] for load in told["loads"]] == ["append", "append", "append", "read"]
    assert all(load["records_per_s"] > 0 and load["p50_ms"] <= load["p99_ms"] for load in told["loads"])
    assert topics.json("ls", "bench.") == []


def test_the_doctor_looks_at_machine_and_service(topics: Topics, shared: Service) -> None:
    found = {each["check"]: each["state"] for each in topics.json("doctor")}
    assert {"settings", "packages", "data", "disk", "descriptors", "service", "version", "key", "clock"} <= found.keys()
    assert found["service"] == found["version"] == found["clock"] == "ok"
    topics.environment |= {"TOPICS_PORT": str(shared.port)}
    assert f"ok    port: a service of topics listens at http://127.0.0.1:{shared.port}\n" in topics("doctor")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        topics.environment |= {"TOPICS_PORT": str(port)}
        told = topics("doctor", status=1)
    assert re.search(rf"^fail  port: 127.0.0.1:{port} cannot be used .*; stop what has it", told, re.MULTILINE)
    topics.environment |= {"TOPICS_PORT": "http"}
    assert "fail  settings: TOPICS_PORT=http" in topics("doctor", status=1)


def test_topics_are_completed_by_asking_the_service(topics: Topics) -> None:
    topics("publish", "compl:orders", "1")
    topics.environment |= {"_TOPICS_COMPLETE": "complete_bash", "COMP_WORDS": "topics read compl:", "COMP_CWORD": "2"}
    assert topics().split() == ["compl:orders"]
    topics.environment |= {"TOPICS_URL": "http://127.0.0.1:1"}
    assert topics().split() == []


def test_a_publish_waits_for_a_service_that_is_down_says_so_and_keeps_its_input(topics: Topics, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with Service(tmp_path / "other") as service:
        service.stop()
        topics.environment |= {"TOPICS_URL": service.url}
        began = time.monotonic()
        with topics.running("publish", "late", "--text", stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write("1\n2\n")
            process.stdin.flush()
            told = process.stderr.readline()
            assert time.monotonic() - began < 5  # 3 s, and the time to start beside other tests
            assert told.startswith(f"topics: {service.url}: no answer yet (ConnectError: ")
            assert "; trying again for " in told
            service.start()
            process.stdin.write("3\n")
            process.stdin.close()
            process.stdin = None
            assert process.stderr.readline().startswith(f"topics: {service.url}: the service answers again, after ")
            assert process.wait(60) == 0
        assert topics("read", "late", "--data").split() == ['"1"', '"2"', '"3"']


def test_a_service_that_is_away_is_status_3_and_wrong_urls_are_2(topics: Topics) -> None:
    for arguments in (("ls",), ("publish", "t", "1"), ("tail", "t", "-f"), ("work", "t", "--exec", "true")):
        topics(*arguments, "--url", "http://127.0.0.1:1", "--patience", "0", status=3)
        assert len(topics.stderr.splitlines()) == 1
        assert "start it with `topics serve`, or name another with --url" in topics.stderr
    for url in ("nonsense", "ftp://x", "http://"):
        topics("ls", "--url", url, status=2)
        assert "is no URL of a service" in topics.stderr


def test_every_block_of_the_page_runs_as_printed(environment: dict[str, str], shared: Service, tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 8
    del environment["TOPICS_URL"]
    environment["TOPICS_PORT"] = str(shared.port)
    directory = tmp_path / "page"
    directory.mkdir()
    script = "set -e -o pipefail\n" + "\n".join(blocks).replace("127.0.0.1:4000", f"127.0.0.1:{shared.port}")
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=600, check=False, env=environment, cwd=directory
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in directory.iterdir()} >= {"keys", "topics.bash", "_topics", "topics.fish"}
