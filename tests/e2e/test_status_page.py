"""Claims about the status page in a browser: its links and commands work. Headless Chromium, driven by its protocol."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.browser import PHONE, Page, tab
from tests.support.service import Service

KEY = "0123456789abcdef0123456789abcdef"


def enter(page: Page, key: str) -> None:
    page.js(f"document.getElementById('key').value = '{key}'; document.forms[0].requestSubmit()")


@contextmanager
def opened(url: str, profile: Path) -> Iterator[Page]:
    """The page as a phone shows it."""
    with tab(profile, PHONE) as page:
        page.visit(url)
        page.shows("document.getElementById('state')?.innerText === 'ready'")
        yield page


def run_all(commands: str, **environment: str) -> list[str]:
    """Run the commands one after the other, as a user would paste them; return the output of each."""
    script = "set -e\n" + commands.replace("curl ", "curl -sS --fail-with-body ")
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PATH": os.environ["PATH"], **environment},
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout.splitlines()


def test_the_commands_it_shows_work_and_names_break_between_words_only(
    new_service: Callable[..., Service], tmp_path: Path
) -> None:
    name = "production:warehouse.shipments:acknowledgements-by-warehouse_and_carrier:2026"
    with new_service() as service:
        service.request("POST", f"/v0/topics/{name}", {"records": [{"data": 1}]})
        with opened(f"http://127.0.0.1:{service.port}/", tmp_path / "profile") as page:
            commands = page.text("start")
            assert "Authorization" not in commands
            assert max(map(len, commands.splitlines())) < 80, "continued on the next line"
            written, read, state = map(json.loads, run_all(commands))
            assert written["seqs"] == [1]
            assert read["records"][0]["data"] == {"hello": "world"}
            assert state["topic"] == "jobs"
            page.shows(f"document.getElementById('rows').innerText.includes('{name}')")
            # The lines that the browser makes of the name, by where each of its characters is.
            lines = page.js(
                """(() => {
                    const cell = [...document.querySelectorAll("#rows td:first-child")]
                        .find(each => each.textContent.startsWith("production"));
                    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), lines = [];
                    let top = null;
                    while (walker.nextNode()) for (let i = 0; i < walker.currentNode.data.length; i += 1) {
                        const range = document.createRange();
                        range.setStart(walker.currentNode, i); range.setEnd(walker.currentNode, i + 1);
                        const at = range.getBoundingClientRect().top;
                        if (at !== top) { lines.push(""); top = at; }
                        lines[lines.length - 1] += walker.currentNode.data[i];
                    }
                    return lines;
                })()"""
            )
            assert "".join(lines) == name
            assert len(lines) > 1, "it is too long for a phone"
            assert all(line[-1] in ":._-" for line in lines[:-1]), lines


def test_with_keys_it_tells_a_wrong_one_and_all_it_shows_takes_the_right_one(
    new_service: Callable[..., Service], tmp_path: Path
) -> None:
    with (
        new_service(TOPICS_API_KEYS=KEY) as service,
        opened(f"http://127.0.0.1:{service.port}/", tmp_path / "profile") as page,
    ):
        page.shows("!document.getElementById('asking').hidden")
        assert page.js("document.getElementById('refused').hidden"), "no key was given yet"
        enter(page, "not-the-key")
        page.shows("document.getElementById('refused').innerText.startsWith('This key is wrong: ')")
        enter(page, KEY)
        page.shows("document.getElementById('asking').hidden")
        page.shows("document.getElementById('topics').innerText === '0'")
        commands = page.text("start")
        assert KEY not in commands
        assert commands.count('-H "Authorization: Bearer $TOPICS_TOKEN"') == 3
        assert len(run_all(commands, TOPICS_TOKEN=KEY)) == 3
        for path, expected in (
            ("/v0/metrics", "topics_records_live"),
            ("/v0/openapi.json", '"openapi"'),
            ("/v0/health", '"status"'),
            ("/v0/ready", '"status"'),
        ):
            page.js(f"document.querySelector('a[href=\"{path}\"]').click()")
            page.shows(f"document.getElementById('shown').innerText.includes('{expected}')")
            page.js("document.getElementById('shown').innerText = ''")
