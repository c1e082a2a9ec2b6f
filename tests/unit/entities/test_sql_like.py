"""LIKE: wildcards, escapes, and patterns that would drive a regular expression mad."""

import pytest

from twinbus.entities.sql.like import Pattern
from twinbus.entities.sql.values import FilterError


@pytest.mark.parametrize(
    "text,pattern,fits",
    [
        ("abc", "abc", True),
        ("abc", "ABC", False),
        ("abc", "ab", False),
        ("", "", True),
        ("a", "", False),
        ("", "%", True),
        ("anything", "%", True),
        ("abc", "a%", True),
        ("abc", "%c", True),
        ("abc", "%b%", True),
        ("abc", "%x%", False),
        ("abc", "a%c", True),
        ("ac", "a%c", True),
        ("a", "a%a", False),
        ("aa", "a%a", True),
        ("abc", "a_c", True),
        ("ac", "a_c", False),
        ("abc", "___", True),
        ("abc", "____", False),
        ("abc", "_%_", True),
        ("a", "_%_", False),
        ("xxabyab", "%a_y%", True),
        ("the bus stops", "%b_s%st__s", True),
        ("aab", "%a_", True),
        ("line\nline", "line%line", True),
        ("a.c", "a.c", True),
        ("abc", "a.c", False),
        ("ababab", "%ab%ab%ab%", True),
        ("abab", "%ab%ab%ab%", False),
        ("日本語", "_本_", True),
    ],
)
def test_wildcards(text: str, pattern: str, fits: bool) -> None:
    assert Pattern(pattern, None).matches(text) is fits


@pytest.mark.parametrize(
    "text,pattern,escape,fits",
    [
        ("ABC%", "ABC\\%", "\\", True),
        ("ABCD", "ABC\\%", "\\", False),
        ("a_c", "a!_c", "!", True),
        ("abc", "a!_c", "!", False),
        ("a!c", "a!!c", "!", True),
        ("abc", "a!bc", "!", True),
        ("50%", "50%%", "%", True),
    ],
)
def test_escape(text: str, pattern: str, escape: str, fits: bool) -> None:
    assert Pattern(pattern, escape).matches(text) is fits


@pytest.mark.parametrize("escape", ["", "ab"])
def test_escape_is_one_character(escape: str) -> None:
    with pytest.raises(FilterError, match="one character"):
        Pattern("a", escape)


@pytest.mark.parametrize("pattern,escape", [("a!", "!"), ("%%%", "%"), ("!!!", "!")])
def test_pattern_that_ends_with_its_escape(pattern: str, escape: str) -> None:
    with pytest.raises(FilterError, match="ends with"):
        Pattern(pattern, escape)


def test_hostile_patterns_look_at_each_character_a_few_times_only() -> None:
    """A backtracking matcher would need longer than the universe has."""
    text = "a" * 32_000
    assert not Pattern("%a" * 500 + "%b", None).matches(text)
    assert not Pattern("%" + "a" * 500 + "b%" + "a" * 400, None).matches(text)
    assert not Pattern("%" + "_a" * 250 + "b%", None).matches(text)
    assert Pattern("%_" * 500 + "%", None).matches(text)
    assert Pattern("%" * 1_024, None).matches(text)
