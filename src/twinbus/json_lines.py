"""JSON with comments, where every value knows its line.

Configuration files are written by people, so a complaint has to say where.  Comments (`//` and
`/* */`) and a comma before a closing bracket are allowed, because the files that Microsoft's
emulator ships have them.  Anything else outside JSON is refused with file and line.
"""

import json
import re
from typing import Final, NoReturn

from twinbus.errors import ConfigError

NESTING_MAX: Final = 32  # deeper than any configuration, far from the interpreter's own limit

_TOKEN: Final = re.compile(
    r"""
    (?P<space>      [\ \t\r\n\ufeff]+ | //[^\n]* | /\*.*?\*/ )
  | (?P<string>     "(?:[^"\\\n]|\\.)*" )
  | (?P<scalar>     -?\d[\d.eE+-]* | true | false | null )
  | (?P<mark>       [{}\[\]:,] )
    """,
    re.VERBOSE | re.DOTALL,
)

Scalar = str | int | float | bool | None


class JsonNode:
    """A value and the line it starts on.  Members of an object carry the line of their key."""

    __slots__ = ("line", "value")

    def __init__(self, value: "Scalar | list[JsonNode] | dict[str, JsonNode]", line: int) -> None:
        self.value = value
        self.line = line


class _Token:
    __slots__ = ("kind", "line", "text")

    def __init__(self, kind: str, text: str, line: int) -> None:
        self.kind = kind
        self.text = text
        self.line = line


def parse(text: str, file_name: str) -> JsonNode:
    """Parse a whole file; `file_name` is only for complaints."""
    return _Parser(text, file_name).document()


class _Parser:
    def __init__(self, text: str, file_name: str) -> None:
        self._file_name = file_name
        self._tokens = self._scan(text)
        self._next = 0

    def document(self) -> JsonNode:
        node = self._value(0)
        if self._peek().kind != "end":
            self._fail(self._peek(), "nothing more after the closing bracket")
        return node

    def _scan(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        position, line = 0, 1
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                self._fail(_Token("", text[position], line), "JSON")
            kind = match.lastgroup or ""
            if kind != "space":
                tokens.append(_Token(kind, match.group(), line))
            line += match.group().count("\n")
            position = match.end()
        tokens.append(_Token("end", "the end of the file", line))
        return tokens

    def _value(self, depth: int) -> JsonNode:
        token = self._take()
        if depth > NESTING_MAX:
            self._fail(token, f"at most {NESTING_MAX} levels of nesting")
        if token.text == "{":
            return JsonNode(self._members(depth), token.line)
        if token.text == "[":
            return JsonNode(self._elements(depth), token.line)
        if token.kind not in {"string", "scalar"}:
            self._fail(token, "a value")
        return JsonNode(self._scalar(token), token.line)

    def _members(self, depth: int) -> dict[str, JsonNode]:
        members: dict[str, JsonNode] = {}
        while self._peek().text != "}":
            key = self._take()
            if key.kind != "string":
                self._fail(key, 'a key in "quotes"')
            self._expect(":")
            name = self._scalar(key)
            assert isinstance(name, str)
            if name in members:
                self._fail(key, f"{name} only once in the same object")
            members[name] = JsonNode(self._value(depth + 1).value, key.line)
            if self._peek().text != "}":
                self._expect(",")
        self._take()
        return members

    def _elements(self, depth: int) -> list[JsonNode]:
        elements: list[JsonNode] = []
        while self._peek().text != "]":
            elements.append(self._value(depth + 1))
            if self._peek().text != "]":
                self._expect(",")
        self._take()
        return elements

    def _scalar(self, token: _Token) -> Scalar:
        try:
            value: Scalar = json.loads(token.text)
        except ValueError:
            self._fail(token, "JSON")
        return value

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        if token.kind != "end":
            self._next += 1
        return token

    def _expect(self, mark: str) -> None:
        token = self._take()
        if token.text != mark or token.kind != "mark":
            self._fail(token, f"`{mark}`")

    def _fail(self, token: _Token, wanted: str) -> NoReturn:
        raise ConfigError(
            f"{self._file_name}, line {token.line}: found {token.text[:32]}, expected {wanted}"
        )
