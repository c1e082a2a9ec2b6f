"""The words of a SQL filter or action: text → tokens, each with its place.

Follows the documented language of Service Bus (docs/reference/filters.md).  Never looks at a
message, and never fails with anything but ArgumentInvalid, which says where and what was wrong.
"""

import math
from typing import Final

from twinbus.entities.sql.values import INT64_MAX
from twinbus.errors import ArgumentInvalid
from twinbus.limits import FILTER_CHARS_MAX

# Kinds of tokens.
END: Final = 0
NAME: Final = 1  # a regular identifier, not a keyword
QUOTED: Final = 2  # [delimited] or "quoted" identifier
KEYWORD: Final = 3  # `text` is in upper case
TEXT: Final = 4
NUMBER: Final = 5
PARAMETER: Final = 6
SIGN: Final = 7

KEYWORDS: Final = frozenset(
    (
        "AND",
        "ESCAPE",
        "EXISTS",
        "FALSE",
        "IN",
        "IS",
        "LIKE",
        "NOT",
        "NULL",
        "OR",
        "REMOVE",
        "SET",
        "TRUE",
    )
)
_TWO_CHARACTERS: Final = frozenset(("<>", "!=", "<=", ">="))
_ONE_CHARACTER: Final = frozenset("=<>+-*/%(),.;")
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_DIGITS: Final = frozenset("0123456789")
_SHOWN_CHARS_MAX: Final = 32


class Token:
    """One word.  `value` is what a literal stands for; `at` is the index of its first character."""

    __slots__ = ("at", "kind", "text", "value")

    def __init__(self, kind: int, text: str, at: int, value: object = None) -> None:
        self.kind = kind
        self.text = text
        self.at = at
        self.value = value

    def shown(self) -> str:
        """The token as an error names it."""
        if self.kind == END:
            return "the end"
        return f"'{self.text[:_SHOWN_CHARS_MAX]}'"


class Lexer:
    """Cuts one text into tokens.  `what` names the text in errors: "filter" or "action"."""

    __slots__ = ("_at", "_end", "text", "what")

    def __init__(self, text: str, what: str) -> None:
        if len(text) > FILTER_CHARS_MAX:
            raise ArgumentInvalid(
                f"The SQL {what} has {len(text)} characters; allowed are {FILTER_CHARS_MAX}."
            )
        self.text = text
        self.what = what
        self._at = 0
        self._end = len(text)

    def error(self, at: int, problem: str) -> ArgumentInvalid:
        """What to raise about the character at `at`."""
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return ArgumentInvalid(f"SQL {self.what}, line {line}, column {column}: {problem}.")

    def tokens(self) -> list[Token]:
        """All tokens; the last one is END."""
        try:
            self.text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self.error(error.start, "half of a surrogate pair is no character") from None
        found: list[Token] = []
        while True:
            token = self._next()
            found.append(token)
            if token.kind == END:
                return found

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self.text[at] if at < self._end else ""

    def _next(self) -> Token:
        while self._at < self._end and self.text[self._at].isspace():
            self._at += 1
        at = self._at
        first = self._peek()
        if not first:
            return Token(END, "", at)
        if first == "'":
            return self._literal(at)
        if first in ("N", "n") and self._peek(1) == "'":
            self._at += 1
            return self._literal(at)
        if first == "[":
            return Token(QUOTED, self._quoted("]", "identifier"), at)
        if first == '"':
            return Token(QUOTED, self._quoted('"', "identifier"), at)
        if first == "@":
            self._at += 1
            return Token(PARAMETER, self._word(at, "a parameter's name"), at)
        if first in _DIGITS or (first == "." and self._peek(1) in _DIGITS):
            return self._number(at)
        if first.isalpha():
            word = self._word(at, "a name")
            upper = word.upper()
            return Token(KEYWORD, upper, at) if upper in KEYWORDS else Token(NAME, word, at)
        for width, signs in ((2, _TWO_CHARACTERS), (1, _ONE_CHARACTER)):
            sign = self.text[at : at + width]
            if sign in signs:
                self._at += width
                return Token(SIGN, sign, at)
        if first == "_":
            raise self.error(at, "a name begins with a letter; put others into brackets: [_name]")
        raise self.error(at, f"the character {first!a} means nothing here")

    def _word(self, at: int, expected: str) -> str:
        """A letter, then letters, decimal digits and underscores."""
        start = self._at
        if not self._peek().isalpha():
            raise self.error(at, f"expected {expected}, which begins with a letter")
        while self._at < self._end and self._is_part(self.text[self._at]):
            self._at += 1
        return self.text[start : self._at]

    def _is_part(self, character: str) -> bool:
        return character == "_" or character.isalpha() or character.isdecimal()

    def _literal(self, at: int) -> Token:
        text = self._quoted("'", "text")
        return Token(TEXT, text, at, text)

    def _quoted(self, close: str, what: str) -> str:
        """What stands up to `close`; written twice, `close` stands for itself."""
        start = self._at
        self._at += 1
        parts: list[str] = []
        while True:
            end = self.text.find(close, self._at)
            if end < 0:
                raise self.error(start, f"{what} without its closing {close}")
            parts.append(self.text[self._at : end])
            self._at = end + 1
            if self._peek() != close:
                break
            parts.append(close)
            self._at += 1
        quoted = "".join(parts)
        if not quoted and what == "identifier":
            raise self.error(start, "a name has at least one character")
        return quoted

    def _number(self, at: int) -> Token:
        if self._peek() == "0" and self._peek(1) in ("x", "X"):
            self._at += 2
            self._skip(_HEX)
            return self._integer(at, 16)
        self._skip(_DIGITS)
        exact = True
        if self._peek() == ".":
            exact = False
            self._at += 1
            self._skip(_DIGITS)
        if self._peek() in ("e", "E"):
            exact = False
            self._at += 2 if self._peek(1) in ("+", "-") else 1
            if not self._skip(_DIGITS):
                raise self.error(at, "expected digits after the exponent's E")
        if exact:
            return self._integer(at, 10)
        text = self.text[at : self._at]
        self._end_of_number(at)
        value = float(text)
        if not math.isfinite(value):
            raise self.error(at, "the number is too large for a double")
        return Token(NUMBER, text, at, value)

    def _integer(self, at: int, base: int) -> Token:
        text = self.text[at : self._at]
        self._end_of_number(at)
        digits = text[2:] if base == 16 else text
        if not digits:
            raise self.error(at, "expected hexadecimal digits after 0x")
        # At most FILTER_CHARS_MAX digits, so this is quick.  One more than the largest is let
        # through: it may turn out to be the smallest, behind "-".
        value = int(digits, base)
        if value > INT64_MAX + 1:
            raise self.error(at, "the number is too large for 64 bits")
        return Token(NUMBER, text, at, value)

    def _end_of_number(self, at: int) -> None:
        following = self._peek()
        if following and self._is_part(following):
            raise self.error(at, "a number ends where a letter follows; put a space between")

    def _skip(self, characters: frozenset[str]) -> bool:
        start = self._at
        while self._at < self._end and self.text[self._at] in characters:
            self._at += 1
        return self._at > start
