"""docs/internals/where.md answers with files and folders that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "where.md"


def test_every_answer_is_there() -> None:
    answers = [line.split("|")[2] for line in PAGE.read_text().splitlines() if line.count("|") == 3]
    places = [re.findall(r"`([a-z_/]+(?:/|\.py))`", answer) for answer in answers[1:]]
    named = [place for found in places for place in found]
    assert len(named) >= 20
    for found in places:
        folder = ""
        for place in found:  # a file without a folder is beside the one before it
            path = ROOT / "src" / "twinbus" / place
            beside = ROOT / "src" / "twinbus" / folder / place
            assert path.exists() or beside.exists(), place
            folder = place.rpartition("/")[0] or folder
