"""LIKE: does a text fit a pattern of % (any characters) and _ (one character)?

Linear in the text for any pattern: the parts between % are looked for one after the other, from
the left, which is right because the first place for a part leaves most room for the rest.  Parts
without _ are found by str.find; those with _ by the shift-and method, all positions of the part
at once in the bits of one integer.  Never a regular expression: those can be made to take for ever.
"""

from typing import Final

from twinbus.entities.sql.values import FilterError

ANY: Final = ""  # stands for _ in a part


class Part:
    """Characters and _ between two %."""

    __slots__ = ("_masks", "_wild", "length", "literal")

    def __init__(self, characters: list[str]) -> None:
        self.length = len(characters)
        self.literal = "" if ANY in characters else "".join(characters)
        self._wild = 0  # bits of the places where _ stands
        self._masks: dict[str, int] = {}  # bits of the places where a character stands
        if not self.literal:
            for place, character in enumerate(characters):
                if character == ANY:
                    self._wild |= 1 << place
                else:
                    self._masks[character] = self._masks.get(character, 0) | 1 << place

    def fits(self, text: str, at: int) -> bool:
        """Does it stand at `at`, where there is room for it?"""
        if self.literal or self.length == 0:
            return text.startswith(self.literal, at)
        for place in range(self.length):
            bits = self._masks.get(text[at + place], 0) | self._wild
            if not bits >> place & 1:
                return False
        return True

    def find(self, text: str, at: int, end: int) -> int:
        """Where it first stands in text[at:end]; -1 when it does not."""
        if self.literal or self.length == 0:
            return text.find(self.literal, at, end)
        found = 1 << (self.length - 1)
        state = 0
        for place in range(at, end):
            state = (state << 1 | 1) & (self._masks.get(text[place], 0) | self._wild)
            if state & found:
                return place - self.length + 1
        return -1


class Pattern:
    """A pattern, taken apart."""

    __slots__ = ("_parts",)

    def __init__(self, pattern: str, escape: str | None) -> None:
        if escape is not None and len(escape) != 1:
            raise FilterError("The ESCAPE of LIKE must be one character.")
        parts: list[list[str]] = [[]]
        escaped = False
        for character in pattern:
            if escaped:
                parts[-1].append(character)
                escaped = False
            elif character == escape:
                escaped = True
            elif character == "%":
                parts.append([])
            else:
                parts[-1].append(ANY if character == "_" else character)
        if escaped:
            raise FilterError("The pattern of LIKE ends with its ESCAPE character.")
        self._parts = [Part(characters) for characters in parts]

    def matches(self, text: str) -> bool:
        parts = self._parts
        first = parts[0]
        if len(parts) == 1:
            return len(text) == first.length and first.fits(text, 0)
        last = parts[-1]
        at = first.length
        end = len(text) - last.length
        if at > end or not first.fits(text, 0) or not last.fits(text, end):
            return False
        for part in parts[1:-1]:
            found = part.find(text, at, end)
            if found < 0:
                return False
            at = found + part.length
        return True
