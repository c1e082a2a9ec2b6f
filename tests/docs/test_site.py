"""The docs make a site: no broken link, no page that nobody finds, nothing from anybody else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT

pytestmark = pytest.mark.feature("docs.site")

_FETCHED = re.compile(
    r"<(?:script|img|iframe)[^>]+src=\"(https?:[^\"]+)|<link[^>]+href=\"(https?:[^\"]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: every warning is an error, and links to what is not there are warnings."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, (
        f"a page has to be in mkdocs.yml's `nav`, a link has to lead somewhere in docs/:\n"
        f"{built.stderr}"
    )
    return directory


def test_every_page_is_there(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        made = site / page.relative_to(DOCS).with_suffix(".html")
        assert made.exists(), made


def test_nothing_is_fetched_from_anybody(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not _FETCHED.findall(page.read_text()), page
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text().replace("url(https://www.w3.org", ""), style


def test_it_can_be_searched_without_a_server_of_its_own(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    for words in ("Paired namespaces", "Failure modes", "twinbus serve"):
        assert words in index


@pytest.mark.parametrize("name", ["one-port", "pair", "partitions"])
def test_drawings_know_light_and_dark_and_say_what_they_show(name: str) -> None:
    text = (DOCS / "images" / f"{name}.svg").read_text()
    assert "prefers-color-scheme: dark" in text
    assert "<title" in text and "<desc" in text


@pytest.mark.parametrize(
    "path", sorted((DOCS / "images").glob("*.svg")), ids=lambda path: path.stem
)
def test_images_fetch_nothing(path: Path) -> None:
    assert "http" not in path.read_text().replace("http://www.w3.org/", "")


@pytest.mark.parametrize("name", ["concepts/failure-modes.md", "internals/invariants.md"])
def test_what_is_said_to_be_proven_has_a_test(name: str) -> None:
    """These pages name files; the second of a folder may be named alone."""
    folder = ROOT
    text = (DOCS / name).read_text()
    found = re.findall(r"`(tests/[\w/.]+|test_\w+\.py)`", text)
    assert len(found) > 25
    for each in found:
        path = ROOT / each if each.startswith("tests/") else folder / each
        assert path.exists(), each
        folder = path.parent if path.is_file() else path
    for each in re.findall(r"`([a-z]+/\w+\.py)`", text):
        assert (ROOT / "src" / "twinbus" / each).exists() or each.startswith("tests/"), each
