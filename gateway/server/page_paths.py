"""The paths that belong to the pages, not to the API. A module of its own because the pages are loaded later."""

from __future__ import annotations

PAGES = frozenset(
    {
        *("/", "/status_page.css", "/status_page.js", "/icon.svg", "/favicon.ico", "/console"),
        *("/docs", "/docs/", "/docs/reference.css"),
        *(f"/docs/{name}.js" for name in ("reference", "elements", "samples", "try")),
    }
)
FOLDER = "/console/"
"""Everything below it belongs to the pages, too."""


def is_page(path: str) -> bool:
    return path in PAGES or path.startswith(FOLDER)
