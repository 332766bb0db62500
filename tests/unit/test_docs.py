"""The pages for people: their links lead somewhere, and the README stays a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README_BYTES = 8 * 1024
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def prose(text: str) -> str:
    """The text without its blocks of code."""
    return _FENCE.sub("", text)


def links(page: Path) -> Iterator[str]:
    for target in _LINK.findall(prose(page.read_text())):
        if "://" not in target:
            yield target


def anchor(heading: str) -> str:
    """The fragment that a heading gets where Markdown is shown."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    for link in links(page):
        name, _, fragment = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if fragment:
            headings = {anchor(heading) for heading in _HEADING.findall(prose(target.read_text()))}
            assert fragment in headings, f"{page.name}: {link}; there are {sorted(headings)}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen:
            continue
        seen.add(page)
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve() if not link.startswith("#") else page
            if target.suffix == ".md":
                ahead.append(target)
            elif target.is_dir():
                ahead.extend(target.glob("*.md"))
    assert set(pages()) <= seen


def test_the_readme_stays_a_page() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES


def test_every_setting_that_a_page_for_users_names_is_in_the_reference() -> None:
    known = (ROOT / "docs" / "configuration.md").read_text() + "TOPICS_API_KEYS TOPICS_URL TOPICS_TOKEN TOPICS_CONFIG"
    for page in ("README.md", "docs/settings.md", "docs/api.md", "docs/keys.md"):
        for name in re.findall(r"`(TOPICS_\w+)`", (ROOT / page).read_text()):
            assert name in known, f"{page}: {name}"
