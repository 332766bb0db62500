"""What the documentation site has besides docs/: pages of the repository's root, and the reference made from the code.

Links between pages of the repository work in the site. A link to a file that is not in the site becomes its text.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "packages" / "topics-client"), str(Path(__file__).parent)]

import reference  # noqa: E402 - needs the path

ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(r"(?<!!)\[([^\]\[]+)\]\(([^)\s]+)\)")
_TEST = re.compile(r"<code>(tests/[^<]+)</code>")
_MARK = re.compile(r"^<!-- not run: .*? -->\n", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    for name in ROOT_PAGES:
        files.append(File.generated(config, f"project/{name}", content=(ROOT / name).read_text()))
    for name, text in reference.pages().items():
        files.append(File.generated(config, f"reference/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    name = page.file.src_uri
    root_page = name.startswith("project/")
    here = "" if root_page else posixpath.dirname(f"docs/{name}")
    there = posixpath.dirname(name)

    def linked(found: re.Match[str]) -> str:
        text, link = found.groups()
        if "://" in link or link.startswith(("#", "mailto:")):
            return found[0]
        path, _, fragment = link.partition("#")
        in_repository = posixpath.normpath(posixpath.join(here, path))
        if in_repository in ROOT_PAGES:
            target = f"project/{in_repository}"
        elif in_repository == "README.md":
            target = "index.md"
        elif in_repository.startswith("docs/"):
            target = in_repository.removeprefix("docs/")
            if (ROOT / in_repository).is_dir():
                target = f"{target}/README.md"
        else:
            return str(text)
        relative = posixpath.relpath(target, there or ".")
        return f"[{text}]({relative}{'#' + fragment if fragment else ''})"

    if page.file.src_uri.startswith("reference/"):
        return markdown
    parts = re.split(r"(^```.*?^```$)", _MARK.sub("", markdown), flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(linked, part) for part in parts)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Let the paths of tests, in the last columns of tables, break between words."""
    return _TEST.sub(lambda found: re.sub(r"(/|_|::)(?!code>)", r"\1<wbr>", found[0]), html)
