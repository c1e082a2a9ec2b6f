"""`$filter` of lists: the few forms that clients of Service Bus use.

    startswith(path, 'orders') eq true
    messageCount gt 0 and accessedAt lt '2026-11-01T00:00:00Z'

Comparisons joined by `and`; names and operators in any case.  Everything else is refused with the
forms that are known.  Reading takes time in proportion to the text.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from twinbus.errors import ArgumentInvalid
from twinbus.gateway.namespaces.views import QueueView, RuleView

FILTER_CHARS_MAX: Final = 2_048  # more than a page of SDK-made ones

View = QueueView | RuleView
Test = Callable[[View], bool]

_WORD: Final = re.compile(r"\s*(?:'((?:[^']|'')*)'|([A-Za-z0-9_.:+-]+)|([(),]))")
# Which signs of (left - right) an operator wants.
_OPERATORS: Final = {
    "eq": (0,),
    "ne": (-1, 1),
    "gt": (1,),
    "ge": (0, 1),
    "lt": (-1,),
    "le": (-1, 0),
}
_NAMES: Final = ("path", "name")
_TIMES: Final = {
    "createdat": "created_utc_ms",
    "updatedat": "updated_utc_ms",
    "modifiedat": "updated_utc_ms",
    "accessedat": "accessed_utc_ms",
}
_NUMBERS: Final = {"messagecount": "message_count", "sizeinbytes": "size_bytes"}
_DIGITS_MAX: Final = 18
_BOOLEANS: Final = {"true": True, "false": False}

_REFUSED: Final = (
    "The $filter is not supported; it is one or more of these, joined by `and`: "
    "startswith(path, 'text') eq true; path, messageCount, sizeInBytes, createdAt, updatedAt or "
    "accessedAt, then eq, ne, gt, ge, lt or le, then a 'text', a number or a UTC time."
)


def read_filter(text: str) -> Test:
    """What a view must pass to be listed."""
    words = _Words(text)
    tests = [_read_comparison(words)]
    while not words.at_end:
        words.expect("and")
        tests.append(_read_comparison(words))
    return lambda view: all(test(view) for test in tests)


class _Words:
    """The words of a filter, one after the other."""

    def __init__(self, text: str) -> None:
        if len(text) > FILTER_CHARS_MAX:
            raise ArgumentInvalid(f"A $filter has at most {FILTER_CHARS_MAX} characters.")
        self._words: list[tuple[str, bool]] = []
        self._next = 0
        text = text.strip()
        position = 0
        while position < len(text):
            match = _WORD.match(text, position)
            if match is None:
                raise ArgumentInvalid(_REFUSED)
            quoted, bare, mark = match.groups()
            is_quoted = quoted is not None
            self._words.append(
                (quoted.replace("''", "'") if is_quoted else bare or mark, is_quoted)
            )
            position = match.end()

    @property
    def at_end(self) -> bool:
        return self._next == len(self._words)

    def next_is(self, word: str) -> bool:
        return not self.at_end and self._words[self._next][0].lower() == word

    def take(self) -> tuple[str, bool]:
        """The next word, and whether it stood in quotes."""
        if self.at_end:
            raise ArgumentInvalid(_REFUSED)
        self._next += 1
        return self._words[self._next - 1]

    def take_bare(self) -> str:
        """A word in lower case, not in quotes."""
        word, is_quoted = self.take()
        if is_quoted:
            raise ArgumentInvalid(_REFUSED)
        return word.lower()

    def expect(self, *words: str) -> str:
        word = self.take_bare()
        if word not in words:
            raise ArgumentInvalid(_REFUSED)
        return word


def _read_comparison(words: _Words) -> Test:
    subject = words.take_bare()
    if subject == "startswith":
        return _read_prefix(words)
    signs = _OPERATORS[words.expect(*_OPERATORS)]
    value, is_quoted = words.take()
    if value.lower() == "datetime" and not is_quoted:  # OData's datetime'2026-11-01T00:00:00Z'
        value, is_quoted = words.take()
    if subject in _NAMES and is_quoted:
        name = value.lower()
        return lambda view: _sign(view.name.lower() > name, view.name.lower() < name) in signs
    if subject in _TIMES:
        return _NumberTest(subject, signs, _utc_ms(value))
    if subject in _NUMBERS and value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX:
        return _NumberTest(subject, signs, int(value))
    raise ArgumentInvalid(_REFUSED)


class _NumberTest:
    """Compares a time or a count of a view."""

    def __init__(self, subject: str, signs: tuple[int, ...], number: int) -> None:
        self._subject = subject
        self._signs = signs
        self._number = number

    def __call__(self, view: View) -> bool:
        found = self._number_of(view)
        return _sign(found > self._number, found < self._number) in self._signs

    def _number_of(self, view: View) -> int:
        if isinstance(view, RuleView):  # it has one time and counts nothing
            return view.created_utc_ms if self._subject in _TIMES else 0
        if self._subject in _TIMES:
            return int(getattr(view, _TIMES[self._subject]))
        return int(getattr(view.counts, _NUMBERS[self._subject]))


def _sign(is_greater: bool, is_less: bool) -> int:
    return is_greater - is_less


def _read_prefix(words: _Words) -> Test:
    words.expect("(")
    words.expect(*_NAMES)
    words.expect(",")
    text, is_quoted = words.take()
    words.expect(")")
    if not is_quoted:
        raise ArgumentInvalid(_REFUSED)
    prefix = text.lower().lstrip("/")
    wanted = True
    if words.next_is("eq"):  # older clients leave it out
        words.expect("eq")
        wanted = _BOOLEANS[words.expect(*_BOOLEANS)]
    return lambda view: view.name.lower().startswith(prefix) is wanted


def _utc_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentInvalid(_REFUSED) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000)
