"""The paths that belong to the pages, not to the API, and the files at them. Of the console, which has more files below
a digest, `gateway.server.console_files` has the rest.

/        the status page. A key entered in it stays there: the page sends it as a header and never shows it. So the page
         itself fetches and shows links that need a key. The commands of the quick start take the key from the shell's
         environment.
/docs    the reference, which shows the service's OpenAPI and AsyncAPI documents. It is written for these two, so it
         needs no library and no build. A request that is tried on it is sent to this service, with the key that the
         page keeps in memory.

The files are read when the pages are loaded, for the first request of one.
"""

from __future__ import annotations

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A browser asks no other host: scripts, styles and requests of the service alone are allowed."""
_HTML, _CSS, _SCRIPT = (f"text/{media}; charset=utf-8" for media in ("html", "css", "javascript"))
FILES: dict[str, tuple[str, str]] = {
    "/": (_HTML, "status_page.html"),
    "/status_page.css": (_CSS, "status_page.css"),
    "/status_page.js": (_SCRIPT, "status_page.js"),
    "/icon.svg": ("image/svg+xml", "console/icon.svg"),
    "/favicon.ico": ("image/svg+xml", "console/icon.svg"),  # asked for by browsers that show an answer of the API
    "/docs": (_HTML, "reference/index.html"),
    "/docs/": (_HTML, "reference/index.html"),
    "/docs/reference.css": (_CSS, "reference/reference.css"),
    **{f"/docs/{name}.js": (_SCRIPT, f"reference/{name}.js") for name in ("reference", "elements", "samples", "try")},
}
"""Path → Content-Type, and file beside this module."""
PAGES = frozenset({*FILES, "/console"})
FOLDER = "/console/"
"""Everything below it belongs to the pages, too."""


def is_page(path: str) -> bool:
    return path in PAGES or path.startswith(FOLDER)
