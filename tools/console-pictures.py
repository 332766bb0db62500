#!/usr/bin/env python3
"""Makes the pictures of the console in docs/img: a service of its own under a load, looked at with headless Chromium.

    .venv/bin/python tools/console-pictures.py [NAME ...]

Without names, all of them. Each picture is at most 200 KB.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.browser import DESKTOP, PHONE, Page, tab  # noqa: E402
from tests.support.console import Client, furnish, load  # noqa: E402
from tests.support.service import Service  # noqa: E402

MOST_BYTES = 200_000
WARM_S = 100
"""Of the first picture, so that its plots have something to show."""
ROW = "document.querySelectorAll('button.seq')[3].click()"
TALL = DESKTOP | {"height": 1010}
PICTURES = (
    # name, address, device, colours, what is done there, seconds until the picture
    ("console-overview", "#/", TALL, "light", "", WARM_S),
    ("console-overview-dark", "#/", TALL, "dark", "", 3),
    ("console-phone", "#/", PHONE, "light", "", 3),
    ("console-topics", "#/topics", DESKTOP, "light", "", 12),
    ("console-records", "#/topics/shop%3Aorders/records", DESKTOP, "light", ROW, 3),
    ("console-live-dark", "#/topics/shop%3Aorders/live", DESKTOP, "dark", ROW, 6),
    ("console-queue", "#/topics/mail", TALL, "light", "", 5),
    ("console-queue-phone", "#/topics/mail", PHONE, "dark", "", 5),
    ("console-consumers", "#/consumers", DESKTOP, "light", "", 6),
    ("console-routers", "#/routers", DESKTOP, "light", "", 10),
)


def rest(page: Page, seconds: float) -> None:
    """Wait, and take what the browser tells meanwhile: it stops when it is not heard."""
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        page.js("0")
        time.sleep(0.1)


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as top, Service(Path(top)) as service:
        with Client(service) as client:
            furnish(client)
        with load(service), tab(Path(top) / "profile") as page:
            page.listen()
            page.visit(f"{service.url}/console")
            for name, address, device, colours, act, wait_s in PICTURES:
                if names and name not in names:
                    continue
                page.size(device)
                page.colours(colours)
                page.js(f"location.hash = '{address}'")
                page.shows("!!document.querySelector('main h1')")
                rest(page, wait_s)
                if act:
                    page.js(act)
                    rest(page, 0.5)
                path = ROOT / "docs" / "img" / f"{name}.png"
                page.picture(path)
                assert path.stat().st_size <= MOST_BYTES, path
                print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")  # noqa: T201
            assert page.errors == []


if __name__ == "__main__":
    main(sys.argv[1:])
