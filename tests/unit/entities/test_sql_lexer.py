"""Tokens of SQL filters: what each literal stands for, and where mistakes are reported."""

import pytest

from twinbus.entities.sql.lexer import (
    END,
    KEYWORD,
    NAME,
    NUMBER,
    PARAMETER,
    QUOTED,
    SIGN,
    TEXT,
    Lexer,
)
from twinbus.errors import ArgumentInvalid


def lexed(text: str) -> list[tuple[int, str]]:
    return [(token.kind, token.text) for token in Lexer(text, "filter").tokens()]


@pytest.mark.parametrize(
    "text,kind,value",
    [
        ("1894", NUMBER, 1894),
        ("0", NUMBER, 0),
        ("007", NUMBER, 7),
        ("0x1F", NUMBER, 31),
        ("0XfF", NUMBER, 255),
        ("9223372036854775807", NUMBER, 2**63 - 1),
        ("1894.1204", NUMBER, 1894.1204),
        ("2.0", NUMBER, 2.0),
        ("2.", NUMBER, 2.0),
        (".5", NUMBER, 0.5),
        ("101.5E5", NUMBER, 101.5e5),
        ("0.5e-2", NUMBER, 0.005),
        ("3e+2", NUMBER, 300.0),
        ("'it''s'", TEXT, "it's"),
        ("''", TEXT, ""),
        ("N'käse'", TEXT, "käse"),
        ("n'x'", TEXT, "x"),
        ("'a\nb'", TEXT, "a\nb"),
    ],
)
def test_literals(text: str, kind: int, value: object) -> None:
    token, end = Lexer(text, "filter").tokens()
    assert token.kind == kind
    assert token.value == value
    assert type(token.value) is type(value)
    assert end.kind == END


@pytest.mark.parametrize(
    "text,expected",
    [
        ("color", (NAME, "color")),
        ("größe_2", (NAME, "größe_2")),
        ("[Property With Space]", (QUOTED, "Property With Space")),
        ("[a]]b]", (QUOTED, "a]b")),
        ('"Contoso & Northwind"', (QUOTED, "Contoso & Northwind")),
        ('"a""b"', (QUOTED, 'a"b')),
        ("[AND]", (QUOTED, "AND")),
        ("and", (KEYWORD, "AND")),
        ("Is", (KEYWORD, "IS")),
        ("@p_1", (PARAMETER, "p_1")),
        ("N", (NAME, "N")),
        ("<>", (SIGN, "<>")),
        ("!=", (SIGN, "!=")),
        (">=", (SIGN, ">=")),
    ],
)
def test_words(text: str, expected: tuple[int, str]) -> None:
    assert lexed(text) == [expected, (END, "")]


def test_spaces_are_needed_only_between_words() -> None:
    assert lexed("a=1 AND(b<>'x')")[:5] == [
        (NAME, "a"),
        (SIGN, "="),
        (NUMBER, "1"),
        (KEYWORD, "AND"),
        (SIGN, "("),
    ]


@pytest.mark.parametrize(
    "text,place,said",
    [
        ("a = 'open", "line 1, column 5", "closing '"),
        ("[open", "line 1, column 1", "closing ]"),
        ("[]", "line 1, column 1", "at least one character"),
        ("a\n= $", "line 2, column 3", "'$'"),
        ("_x", "line 1, column 1", "[_name]"),
        ("@", "line 1, column 1", "parameter"),
        ("@1", "line 1, column 1", "parameter"),
        ("0x", "line 1, column 1", "hexadecimal"),
        ("12abc", "line 1, column 1", "letter"),
        ("1e", "line 1, column 1", "exponent"),
        ("1e999", "line 1, column 1", "double"),
        ("9223372036854775809", "line 1, column 1", "64 bits"),
        ("9" * 1_000, "line 1, column 1", "64 bits"),
        ("a = '\ud800'", "line 1, column 6", "surrogate"),
        ("!", "line 1, column 1", "'!'"),
    ],
)
def test_mistakes_say_where(text: str, place: str, said: str) -> None:
    with pytest.raises(ArgumentInvalid) as caught:
        Lexer(text, "filter").tokens()
    assert place in str(caught.value)
    assert said in str(caught.value)


def test_a_text_is_at_most_1024_characters_long() -> None:
    assert len(Lexer("a" * 1_024, "filter").tokens()) == 2
    with pytest.raises(ArgumentInvalid, match="1025 characters"):
        Lexer("a" * 1_025, "filter")
