"""The examples with a page start as their page in the documentation says, and do what it says, in headless Chromium."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.support.browser import Page, tab
from tests.support.console import accessible
from tests.support.doc_blocks import ROOT, blocks
from tests.support.service import Service, until

PAGE = "examples.md"
COMMANDS = {block.text.split()[-1]: block.text for block in blocks(f"docs/{PAGE}")}

START_S = 120
"""A Spark session takes long to start and to stop on a loaded machine."""


class Example:
    """A running example, and its tabs."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path, stack: ExitStack, profiles: Path) -> None:
        self.process = process
        self._said = said
        self._stack = stack
        self._profiles = profiles
        self.tabs: list[Page] = []

    @property
    def said(self) -> str:
        return self._said.read_text()

    @property
    def address(self) -> str:
        return next(line.split()[1] for line in self.said.splitlines() if line.startswith("open "))

    def open(self) -> Page:
        """The page of the example, in a browser of its own."""
        page = self._stack.enter_context(tab(self._profiles / f"profile-{len(self.tabs)}"))
        self.tabs.append(page)
        page.listen()
        page.visit(self.address)
        return page


def recipe(name: str, arguments: str) -> list[str]:
    """What `make` runs for the command of the page, without what it installs. Also below another `make`."""
    given = ["--dry-run", "--no-print-directory", f"VENV={Path(sys.executable).parents[1]}", f"ARGS={arguments}"]
    command = [*shlex.split(COMMANDS[name]), *given]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True).stdout
    return ["sh", "-c", said.splitlines()[-1]]


def kernel_threads(pid: int) -> str:
    """The system call in which each thread of a process is, and its signals: pending, blocked and caught."""
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
        signals = [line for line in (task / "status").read_text().splitlines() if line.startswith(("Sig", "ShdPnd"))]
        found.append(f"{task.name} in {(task / 'syscall').read_text().strip()}: {', '.join(signals)}")
    return "\n".join(found)


@contextmanager
def example(name: str, directory: Path, arguments: str = "") -> Iterator[Example]:
    """Run an example on a free port."""
    command = recipe(name, f"--port 0 {arguments}")
    with ExitStack() as stack:
        said = directory / "said"
        with said.open("wb") as output:
            environment = os.environ | {"PYTHONFAULTHANDLER": "1"}
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True, env=environment
            )
        running = Example(process, said, stack, directory)
        try:
            until(lambda: "\nopen " in running.said or process.poll() is not None, "the example", START_S)
            yield running
            for page in running.tabs:
                page.js("0")  # hears what came before
                assert page.errors == []
                assert all(each.url.startswith("http://127.0.0.1:") for each in page.transfers.values())
            process.terminate()
            try:
                assert process.wait(START_S) == 0, running.said
            except subprocess.TimeoutExpired as error:
                services = children(process.pid)
                error.add_note(kernel_threads(process.pid))
                process.send_signal(signal.SIGABRT)  # says where each thread is
                process.wait(START_S)
                for pid in services:
                    os.kill(pid, signal.SIGTERM)
                raise
        except Exception as error:
            error.add_note(f"{name} said:\n{running.said}")
            for page in running.tabs:
                error.add_note(f"a console says: {page.errors}")
            raise
        finally:
            if process.poll() is None:
                process.terminate()  # its service ends with it
                process.wait(20)


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gateway(running: Example) -> int:
    """The gateway of the service that an example has started."""
    [service] = children(running.process.pid)
    return next(pid for pid in children(service) if b"gateway" in Path(f"/proc/{pid}/cmdline").read_bytes())


def answered(asked: Request) -> int:
    try:
        with urlopen(asked, timeout=10) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


FLIGHTS = """year,month,day,dep_time,sched_dep_time,dep_delay,carrier,flight,origin,dest
2013,7,10,805,810,-5,UA,1,JFK,LAX
2013,7,10,820,820,0,B6,2,JFK,BOS
2013,7,10,NA,825,NA,AA,3,JFK,MIA
2013,7,10,910,830,40,UA,4,JFK,SFO
2013,7,10,840,840,0,DL,5,LGA,ATL
2013,7,11,840,840,0,DL,6,JFK,ATL
"""


def test_the_board_shows_departures_live_and_misses_none_when_the_gateway_is_killed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", FLIGHTS)
    with example("departures", tmp_path, f"--csv {tmp_path}/flights.csv.zip --speed 7") as running:
        page = running.open()
        page.reads("UA 4")
        os.kill(gateway(running), signal.SIGKILL)
        accessible(page)
        page.shows("document.getElementById('clock').textContent === '09:10'")
        page.reads("DEPARTED")
        assert page.text("count") == str(4 + 4 + 2 + 5)  # every change came, and none came twice
        assert "DL" not in page.js("document.body.innerText")


def test_two_browsers_chat(tmp_path: Path) -> None:
    with example("chat", tmp_path) as running:
        ada, bob = running.open(), running.open()
        for page, name in ((ada, "Ada"), (bob, "Bob")):
            page.reads("Open this page in a second browser.")  # history
            page.type("#name", name)
            page.press("Tab")
        ada.type("#text", "<b>Hello</b>")
        ada.click("#say button")
        bob.reads("<b>Hello</b>")
        bob.shows("document.getElementById('here').innerText.includes('Ada')")
        ada.shows("document.getElementById('here').innerText.includes('Bob')")
        accessible(ada)
        os.kill(gateway(running), signal.SIGKILL)
        bob.type("#text", "Are you still there?")
        until(lambda: bob.press("Enter") or bob.js("document.getElementById('text').value === ''"), "a message")
        ada.reads("Are you still there?")
        bob.type("#room", "garden")
        bob.press("Enter")
        bob.reads("opened the room")
        assert any("?ticket=" in each.url for each in ada.transfers.values())
        assert not any(
            "Hello" in message for message in bob.js("document.querySelector('main').innerText").splitlines()
        )


def test_an_example_ends_whichever_of_its_threads_gets_the_signal() -> None:
    program = """
import os, signal, sys, threading
sys.path.insert(0, "examples/browser")
import pages

def other():
    while open(f"/proc/self/task/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "S":
        pass
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

signal.signal(signal.SIGTERM, signal.default_int_handler)
threading.Thread(target=other, daemon=True).start()
try:
    pages.wait()
except KeyboardInterrupt:
    print("ended")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=START_S, check=True
    )
    assert done.stdout == "ended\n"


def test_a_chat_without_its_key_says_what_is_missing(tmp_path: Path) -> None:
    with example("chat", tmp_path) as running:
        address = running.address
        page = running.open()
        page.shows("document.getElementById('link').textContent === 'live'")
        for wrong, said in (("", "this address has none behind a #"), ("#" + "a" * 32, "does not take the key behind")):
            page.visit("about:blank")
            page.visit(address.partition("#")[0] + wrong)
            page.reads(said)
            page.reads("Open the address that the example printed")


def test_a_chat_with_a_service_that_asks_for_a_key_ends_with_a_sentence(
    new_service: Callable[..., Service], tmp_path: Path
) -> None:
    with new_service(TOPICS_API_KEYS="0123456789abcdef0123456789abcdef") as service:
        for given, sentence in (("", "and none was given: --key KEY"), ("--key wrong", "does not take the key")):
            command = recipe("chat", f"--port 0 --url {service.url} {given}")
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=START_S, check=False)
            assert ended.returncode == 1
            assert sentence in ended.stderr
            assert "Traceback" not in ended.stderr


def test_the_names_of_airports_are_as_people_write_them() -> None:
    command = [sys.executable, "-c", 'from departures import shown; print(shown(r"Martha\\\\\'s Vineyard"))']
    said = subprocess.run(command, cwd=ROOT / "examples" / "browser", capture_output=True, text=True, check=True)
    assert said.stdout == "Martha's Vineyard\n"


def test_images_are_resized_and_dead_letters_come_back_after_the_fix(tmp_path: Path) -> None:
    letters = "document.getElementById('letters').innerText"
    with example("images", tmp_path) as running:
        page = running.open()
        page.shows("!document.getElementById('generate').disabled")
        page.click("#generate")
        page.reads("8 done, 0 in the queue")
        page.shows(f"{letters}.includes('cut-short.jpg') && {letters}.includes('image file is truncated')")
        page.shows(f"{letters}.includes('notes.jpg') && {letters}.includes('cannot identify image file')")
        accessible(page)
        assert page.js("[...document.images].every(each => each.complete && each.naturalWidth === 240)")
        page.js("location.reload()")
        page.shows("document.querySelectorAll('#letters article').length === 2")
        page.click("#mend")
        page.reads("Fix deployed")
        page.click("#redrive")
        page.reads("9 done, 0 in the queue")
        page.shows(f"{letters}.includes('notes.jpg') && !{letters}.includes('cut-short.jpg')")
        for origin, status in (("http://evil.example", 403), (running.address.rstrip("/"), 204)):
            assert answered(Request(running.address + "mend", b"", {"Origin": origin})) == status
