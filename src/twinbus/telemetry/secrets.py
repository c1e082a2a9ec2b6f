"""Secrets that must never be logged: every key of the server, and clients' credentials.

    keys of namespaces and entities     known as long as the server runs
    passwords and signatures received   right or wrong; the newest few

A line is searched for all of them at once, however many there are.  If a line was cut short, the
beginning of a secret is hidden too.  Besides known secrets, anything in the form of a signature, a
connection string's key or a web token is hidden.

Must never log what it knows, and never make a logging call fail.
"""

import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import quote, unquote

HIDDEN: Final = "***"
SHOWN_MAX: Final = 2_000  # of what clients have shown, the newest are known
_CHARS_MIN: Final = 4  # a key of three letters would hide half of every line, and is none
# A client chooses what it shows: words of ours would let it blot out what a log says of it.
_SHOWN_CHARS_MIN: Final = 12
_BEGINNING: Final = 12  # so much of a secret gives it away

_FORMS: Final = re.compile(
    r"((?:SharedAccessKey|sig|signature|password)(?:=|%3D))[^&;\s'\"]+"
    r"|(\bBearer\s+)\S+"
    r"|\beyJ[\w-]{8,}(?:\.[\w-]*){0,2}",
    re.IGNORECASE,
)
_SIGNATURE: Final = re.compile(r"\bsig=([^&\s]+)")


class KnownSecrets:
    """Finds secrets in text.  Any thread may log, so there is a mutex."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._lasting: dict[str, None] = {}
        self._shown: OrderedDict[str, None] = OrderedDict()
        # By their first characters: a text is looked at once, place by place.
        self._by_beginning: dict[str, list[str]] = {}
        self._lengths: set[int] = set()
        self._starts: Counter[str] = Counter()  # their very first characters: most places have none
        # Told of keys that are new; broker processes have to know them, too.
        self.on_added: Callable[[list[str]], None] = _ignore

    def add(self, keys: Iterable[str]) -> None:
        """Keys of the server."""
        fresh = [key for key in keys if key not in self._lasting]
        if fresh:
            with self._mutex:
                for key in fresh:
                    self._lasting[key] = None
                    self._index(key)
            self.on_added(fresh)

    def all_keys(self) -> list[str]:
        """The server's own, not what clients have shown."""
        return list(self._lasting)

    def show(self, credential: str) -> None:
        """A client has shown this token or password."""
        if credential.startswith("eyJ"):
            return  # hidden by its form
        found = _SIGNATURE.search(credential)
        secret = unquote(found[1]) if found else credential
        if len(secret) < _SHOWN_CHARS_MIN or " " in secret:
            return
        with self._mutex:
            if secret in self._shown or secret in self._lasting:
                return
            self._shown[secret] = None
            self._index(secret)
            if len(self._shown) > SHOWN_MAX:
                oldest, _ = self._shown.popitem(last=False)
                self._forget(oldest)

    def hide(self, text: str) -> str:
        """The text without any of them."""
        text = _FORMS.sub(_without_value, text)
        with self._mutex:
            return self._hide_known(text)

    def _hide_known(self, text: str) -> str:
        kept: list[str] = []
        start = at = 0
        while at < len(text):
            end = self._end_of_secret(text, at)
            if end > at:
                kept += (text[start:at], HIDDEN)
                start = at = end
            else:
                at += 1
        return "".join([*kept, text[start:]]) if kept else text

    def _end_of_secret(self, text: str, at: int) -> int:
        """Where the longest secret ends that begins here; `at` if none does."""
        end = at
        if text[at : at + _CHARS_MIN] not in self._starts:
            return end
        for length in self._lengths:
            for secret in self._by_beginning.get(text[at : at + length], ()):
                stop = at + length
                for character in secret[length:]:
                    if stop == len(text) or text[stop] != character:
                        break
                    stop += 1
                end = max(end, stop)
        return end

    def _index(self, secret: str) -> None:
        for spelling in _spellings(secret):
            beginning = spelling[:_BEGINNING]
            self._by_beginning.setdefault(beginning, []).append(spelling)
            self._lengths.add(len(beginning))
            self._starts[spelling[:_CHARS_MIN]] += 1

    def _forget(self, secret: str) -> None:
        for spelling in _spellings(secret):
            others = self._by_beginning[spelling[:_BEGINNING]]
            others.remove(spelling)
            if not others:
                del self._by_beginning[spelling[:_BEGINNING]]
            start = spelling[:_CHARS_MIN]
            self._starts[start] -= 1
            if not self._starts[start]:
                del self._starts[start]


def _spellings(secret: str) -> set[str]:
    """As it is, as a URL has it, and as Python prints it."""
    if len(secret) < _CHARS_MIN:
        return set()
    return {secret, quote(secret, safe=""), secret.encode("unicode_escape").decode("ascii")}


def _without_value(found: re.Match[str]) -> str:
    return (found[1] or found[2] or "") + HIDDEN


def _ignore(keys: list[str]) -> None:
    """Nobody else has to know."""
