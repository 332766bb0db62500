"""The status page: `status_page.html`, with its style and its script beside this module.

A key entered in the page stays there: the page sends it as a header and never shows it. So the page itself fetches and
shows links that need a key. The commands of the quick start take the key from the shell's environment.
"""

from __future__ import annotations

from importlib.resources import files

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FOLDER = files("gateway.server")
_ICON = ("image/svg+xml", _FOLDER.joinpath("console", "icon.svg").read_bytes())
HTML = _FOLDER.joinpath("status_page.html").read_text()
FILES: dict[str, tuple[str, bytes]] = {
    "/": ("text/html; charset=utf-8", HTML.encode()),
    "/status_page.css": ("text/css; charset=utf-8", _FOLDER.joinpath("status_page.css").read_bytes()),
    "/status_page.js": ("text/javascript; charset=utf-8", _FOLDER.joinpath("status_page.js").read_bytes()),
    "/icon.svg": _ICON,
    "/favicon.ico": _ICON,  # asked for by browsers that show an answer of the API
}
"""Path → Content-Type and content."""
