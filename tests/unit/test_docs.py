"""The pages for people: their links lead somewhere, the names in them exist, and the README stays a page."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from gateway.contract.operations import OPERATIONS
from tests.support.footnotes import proofs
from tests.unit.test_imports import ALLOWED, FOLDERS

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


LINKING = [*pages(), *sorted(ROOT.glob("packages/*/README.md")), *sorted((ROOT / ".github").rglob("*.md"))]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
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


def test_the_page_of_measurements_stays_short() -> None:
    """Method, tables, how to repeat. A lesson is on the page that it explains. `make bench` changes some words."""
    assert len((ROOT / "docs" / "benchmarks.md").read_text().split()) <= 2_500


def test_every_setting_that_a_page_for_users_names_is_in_the_reference() -> None:
    table = (ROOT / "docs" / "configuration.md").read_text().partition("| Variable |")[2]
    known = table + "TOPICS_API_KEYS_FILE TOPICS_URL TOPICS_TOKEN TOPICS_CONFIG"
    for page in ("README.md", "docs/configuration.md", "docs/api.md", "docs/keys.md"):
        for name in re.findall(r"`(TOPICS_\w+)`", (ROOT / page).read_text()):
            assert name in known, f"{page}: {name}"


def test_the_page_of_the_api_has_every_operation() -> None:
    table = (ROOT / "docs" / "api.md").read_text().partition("\n## Conventions\n")[0]
    named = " ".join(re.findall(r"`([^`]+)`", re.sub(r"\{\w+\}", "{}", table)))
    for operation in OPERATIONS:
        for path in operation.paths:
            same = re.sub(r"\{\w+\}", "{}", path)
            assert same in named or f" {same.rpartition('}')[2]} " in named, f"{operation.method} {path}"


# Names in pages: modules and tests that a page mentions are there.
_PATH = re.compile(
    r"(?<![\w/.-])((?:proto|gateway|shardd|supervisor|pyspark_topics|topics_server|tests|tools|bench)/[\w/-]+\.(?:py|sh))"
    r"(?:::(\w+))?"
)
_IN = re.compile(r"`(\w+)`\s+(?:of|in)\s+`(\w+/[\w/-]+\.py)`")
_DOTTED = re.compile(r"`((?:proto|gateway|shardd|supervisor|pyspark_topics|topics_server)(?:\.[a-z_]\w*)+)`")
_TEST = re.compile(r"`(test_\w+)`")


@cache
def _every_test() -> frozenset[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return frozenset(name for file in files for name in _tests_of(file))


@cache
def _tests_of(file: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^ *(?:async )?def (test_\w+)\(", file.read_text(), re.MULTILINE))


def wrong_names(text: str) -> list[str]:
    """What a text calls a module, a test or a name in a module, and is none."""
    found = []
    for path, test in _PATH.findall(text):
        file = ROOT / path
        if not file.is_file():
            found.append(path)
        elif test and test not in _tests_of(file):
            found.append(f"{path}::{test}")
    for name, path in _IN.findall(text):
        if (ROOT / path).is_file() and not re.search(rf"\b{name}\b", (ROOT / path).read_text()):
            found.append(f"{name} in {path}")
    for dotted in _DOTTED.findall(text):
        module = ROOT / dotted.replace(".", "/")
        if not module.with_suffix(".py").is_file() and not module.is_dir():
            found.append(dotted)
    return found + [test for test in _TEST.findall(text) if test not in _every_test()]


NAMING = [page for page in pages() if page.name != "CHANGELOG.md"]
"""A changelog tells of names that were."""


@pytest.mark.parametrize("page", NAMING, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_and_tests_that_a_page_names_are_there(page: Path) -> None:
    assert wrong_names(page.read_text()) == []


_RUN = 20


def runs_of_words(page: Path) -> set[tuple[str, ...]]:
    """Each run of `_RUN` words of a page's prose, without blocks, footnotes, comments and the targets of links."""
    text = page.read_text().partition("<!-- Made by `make reference`")[0]
    text = re.sub(r"^(?:    |\[\^)[^\n]*$|<!--.*?-->|\]\([^)]*\)", "", prose(text), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\w+", text.lower())
    return {tuple(found[start : start + _RUN]) for start in range(len(found) - _RUN + 1)}


def test_no_two_pages_say_the_same_in_the_same_words() -> None:
    """A thing is said once, and linked to. The start page of the site begins as the README does."""
    seen: dict[tuple[str, ...], Path] = {}
    for page in NAMING:
        for run in runs_of_words(page) if page != ROOT / "docs" / "index.md" else ():
            first = seen.setdefault(run, page)
            assert first == page, f"{first.name} and {page.name}: {' '.join(run)}"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`shardd/shard.py`, `tests/unit/test_docs.py::test_the_readme_stays_a_page`, `shardd.shard`", []),
        ("`shardd/no_such_module.py`", ["shardd/no_such_module.py"]),
        ("see tests/unit/test_no_such.py", ["tests/unit/test_no_such.py"]),
        ("`tests/unit/test_docs.py::test_no_such`", ["tests/unit/test_docs.py::test_no_such"]),
        ("`gateway.no_such`", ["gateway.no_such"]),
        ("`test_no_such`", ["test_no_such"]),
        ("`Shard` of `shardd/shard.py`, `NO_SUCH` in\n`shardd/shard.py`", ["NO_SUCH in shardd/shard.py"]),
    ],
)
def test_a_wrong_name_is_found(text: str, wrong: list[str]) -> None:
    assert wrong_names(text) == wrong


INDEX = ROOT / "docs" / "architecture.md"
DESIGN = sorted((ROOT / "docs" / "design").glob("*.md"))
SUBSYSTEMS = [page for page in DESIGN if page.name != "dependencies.md"]
_PROOF = re.compile(r"`tests/[\w/]+\.py|^the same$|^by construction|^none; a known limit$")


@pytest.mark.parametrize(
    "page", [page for page in DESIGN if page.name != "dependencies.md"], ids=lambda page: page.name
)
def test_each_subsystem_has_a_failure_table_whose_rows_say_what_proves_them(page: Path) -> None:
    _, heading, after = page.read_text().partition("\n## When something fails\n")
    assert heading, page
    rows = [row for row in after.splitlines() if row.startswith("|") and not set(row) <= set("|- ")]
    assert len(rows) >= 4, page
    for row in rows:
        proof = row.strip("|").rpartition("|")[2].strip()
        assert proof == "test" or _PROOF.search(proof), row


def test_the_index_leads_to_every_subsystem() -> None:
    index = INDEX.read_text()
    assert DESIGN
    for page in DESIGN:
        assert f"(design/{page.name})" in index.partition("\n## Subsystems\n")[2]


def test_the_index_has_every_folder_of_the_packages() -> None:
    listed = set(re.findall(r"^\| `((?:proto|gateway|shardd|supervisor)/\w+/)` \|", INDEX.read_text(), re.MULTILINE))
    there = {
        f"{path.parent.relative_to(ROOT)}/"
        for package in ("proto", "gateway", "shardd", "supervisor")
        for path in (ROOT / package).glob("*/__init__.py")
    }
    assert listed == there


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_index_says_of_each_package_what_it_may_import() -> None:
    table = INDEX.read_text().partition("\n## Packages\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)`[^|]*\|[^|]*\|([^|]*)\|", table, re.MULTILINE))
    assert rows.keys() == {path.rpartition("/")[2] for path in ALLOWED}
    named = {"Python client": "topics_client", "pyspark_topics": "pyspark_topics", "proto": "proto"}
    for path, may in ALLOWED.items():
        package = path.rpartition("/")[2]
        said = {real for name, real in (named | {"supervisor": "supervisor"}).items() if name in rows[package]}
        assert said == may - {package}, package


@pytest.mark.parametrize("package", FOLDERS)
def test_the_index_has_folders_above_those_that_they_import(package: str) -> None:
    """In a row of the table of layers, a later one may import an earlier one of its cell."""
    table = INDEX.read_text().partition("\n| `gateway` | `shardd` | `proto` | `supervisor` |\n")[2].partition("\n\n")[0]
    column = ["gateway", "shardd", "proto", "supervisor"].index(package)
    order = [name for row in table.splitlines()[1:] for name in re.findall(r"`(\w+)`", _cells(row)[column])]
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert folders <= set(order)
    for name in order:
        above = [other for other in FOLDERS[package][name] if other in order and order.index(other) > order.index(name)]
        assert above == [], name


def test_the_glossary_has_each_word_once_and_in_order() -> None:
    tables = (ROOT / "docs" / "glossary.md").read_text().partition("\n## Standard terms\n")[2].split("\n## ")
    words = [re.findall(r"^\| (?!---|term|word)([^|]+) \|", table, re.MULTILINE) for table in tables]
    assert all(len(table) > 30 for table in words)
    assert all(table == sorted(table, key=str.lower) for table in words)
    every = [word for table in words for word in table]
    assert len(set(every)) == len(every)


def test_the_folders_of_the_unit_tests_are_those_of_the_packages() -> None:
    for folder in {
        path.parent.relative_to(ROOT / "tests" / "unit") for path in (ROOT / "tests/unit").rglob("test_*.py")
    }:
        assert (ROOT / folder).is_dir() or any(ROOT.glob(f"packages/*/{folder}")), folder


_OURS = "(?:topics-server|topics-client|pyspark-topics)"
_BY_NAME = re.compile(rf"""\b(?:pipx?|tool) install\s+(?:-\S+\s+)*['"]?{_OURS}\b(?!\[?[\w,]*\]? @ )""")
"""A command that takes a distribution of ours from an index, where none of them is."""
_EXTRA = re.compile(r"(?:'\.|topics-server)\[([\w,]+)\]")


def test_no_page_or_message_installs_by_name_what_is_on_no_index() -> None:
    named = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in [*LINKING, *(path for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py")))]
        if path.name != "CHANGELOG.md"
        for found in _BY_NAME.finditer(path.read_text())
    ]
    assert named == []
    assert _BY_NAME.search("pip install 'topics-server[bucket]'")
    assert not _BY_NAME.search("pip install 'topics-server[bucket] @ git+https://HOST/topics.git'")


def test_extras_that_a_page_installs_are_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in LINKING:
        for extras in _EXTRA.findall(page.read_text()):
            assert set(extras.split(",")) <= declared.keys(), page


def test_each_guarantee_names_the_test_that_proves_it() -> None:
    promises = proofs((ROOT / "docs" / "guarantees.md").read_text())
    assert len(promises) > 40
    for row, texts in promises:
        # The row of a class without a promise of its own still names the test of what it does.
        assert len(texts) == 1, row
        assert re.fullmatch(r"`tests/[\w/]+\.py::test_\w+`(, `tests/[\w/]+\.py::test_\w+`)*", texts[0]), row


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("| a[^1] | b |\n\n[^1]: x\n[^1]: y\n", "twice"),
        ("| a[^1] | b |\n", "without a mark or a text"),
        ("[^1]: x\n", "without a mark or a text"),
    ],
)
def test_a_footnote_that_leads_nowhere_is_found(page: str, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        proofs(page)


def test_a_row_has_the_texts_of_its_footnotes() -> None:
    page = "| head |\n| --- |\n| a[^one] |\n| b |\n| c[^one][^2] |\n\n[^one]: `x`\n[^2]: `y`\n"
    assert proofs(page) == [("| a[^one] |", ["`x`"]), ("| b |", []), ("| c[^one][^2] |", ["`x`", "`y`"])]


DECISIONS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))


def test_decisions_are_short_numbered_and_listed() -> None:
    listed = (ROOT / "docs" / "adr" / "README.md").read_text()
    for number, page in enumerate(DECISIONS, 1):
        text = page.read_text()
        assert page.name.startswith(f"{number:04}-")
        assert text.startswith(f"# {number}. ")
        assert f"({page.name})" in listed
        assert len(text.splitlines()) <= 40, page
        for part in ("**Context.**", "**Decision.**", "**Consequences.**", "**Alternatives.**"):
            assert part in text, (page, part)
