"""Which paths belong to the pages rather than to the API. Apart from them because they are loaded later."""

from __future__ import annotations

PAGES = frozenset({"/"})


def is_page(path: str) -> bool:
    return path in PAGES
