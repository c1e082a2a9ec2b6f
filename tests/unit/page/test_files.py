"""The files of the page: complete, of this server only, and no text in them becomes code."""

import json
import re
from pathlib import Path

import pytest

from twinbus import page
from twinbus.gateway.faults.kinds import KINDS, SCOPE_KEYS

FOLDER = Path(page.__file__).parent
SCRIPTS = sorted(name for name in page.FILES if name.endswith(".js"))
TEXTS = sorted(page.FILES)

# Each of these can turn a text into markup or code, or is refused by the policy anyway.
DANGEROUS = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "createContextualFragment",
    "text/html",
    "document.write",
    "setHTML",
    "srcdoc",
    "eval(",
    "new Function",
    "localStorage",
    "sessionStorage",
    "indexedDB",
    "document.cookie",
)
ADDRESS = re.compile(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", re.IGNORECASE)
# Names of XML, which no browser ever asks for.
XML_NAMES = ("http://www.w3.org/2000/svg", "http://www.w3.org/2001/XMLSchema-instance")
LINES_MAX = 560


def text_of(name: str) -> str:
    return page.read(name).decode()


def test_every_file_of_the_folder_is_in_the_list() -> None:
    lying_there = {path.name for path in FOLDER.iterdir() if path.is_file()}
    assert lying_there - {"__init__.py"} == set(page.FILES)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_text_becomes_code(name: str) -> None:
    found = [word for word in DANGEROUS if word in text_of(name)]
    assert not found, f"{name} uses {found}"


@pytest.mark.parametrize("name", TEXTS)
def test_no_address_of_anybody_else(name: str) -> None:
    text = text_of(name)
    for known in XML_NAMES:
        text = text.replace(f'"{known}"', "")
    assert not ADDRESS.search(text), name


def test_the_form_knows_the_kinds_of_faults() -> None:
    shown = text_of("faultkinds.js").partition("export const KINDS = ")[2].rstrip(";\n")
    assert json.loads(shown) == [
        {
            "name": kind.name,
            "sentence": kind.sentence,
            "scope": [key for key in SCOPE_KEYS if key in kind.scope],
            "needs": kind.needs,
            "takes_probability": kind.is_likely,
            "takes_delay": kind.has_delay,
            "is_once": kind.is_once,
        }
        for kind in KINDS.values()
    ]


def test_markup_has_no_script_or_style_of_its_own() -> None:
    markup = text_of(page.INDEX)
    assert not re.search(r"<style|\sstyle=|\son\w+=", markup)
    assert re.findall(r"<script[^>]*>([^<]*)</script>", markup) == [""]


def test_what_is_named_is_there() -> None:
    named = set(re.findall(r'"/\$page/([^"]+)"', text_of(page.INDEX)))
    for name in SCRIPTS:
        named |= set(re.findall(r'from "\./([^"]+)"', text_of(name)))
    assert named <= set(page.FILES)
    assert named >= set(page.FILES) - {page.INDEX}, "a file that nobody loads"


@pytest.mark.parametrize("name", [name for name in TEXTS if not name.endswith(".svg")])
def test_a_file_can_be_read(name: str) -> None:
    text = text_of(name)
    assert text.count("\n") <= LINES_MAX
    assert text.startswith(("// ", "/* ", "<!doctype html>")), "it says first what it is"
