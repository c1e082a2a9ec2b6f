"""All sections of an encoded message, for tests that compare whole messages."""

from twinbus.message.sections import FOOTER, HEADER, Outline


def sections_of(data: bytes) -> list[tuple[int, bytes]]:
    """Code and encoded value of each section, in the standard order."""
    outline = Outline(data)
    found: list[tuple[int, bytes]] = []
    for code in range(HEADER, FOOTER + 1):
        borders = outline.body_borders() if code == outline.body else [outline.borders(code)]
        found += [(code, data[start:end]) for start, end in borders if end]
    return found
