"""What a page must have so that everybody can use it, asked of the browser itself (judging.js).

No full audit: names of controls, labels, headings, landmarks, unique ids, contrast of texts.
"""

from pathlib import Path
from typing import Final

from playwright.sync_api import Page

CONTRAST_MIN: Final = 4.5  # WCAG 2.2, AA, for texts of ordinary size
_JUDGE: Final = Path(__file__).with_suffix(".js").read_text().strip()


def faults_of(page: Page) -> list[str]:
    """What stands in somebody's way."""
    return list(page.evaluate(f"{_JUDGE}.faults()"))


def faint_texts(page: Page) -> list[str]:
    """Texts that are hard to read."""
    found = page.evaluate(f"{_JUDGE}.contrasts()")
    assert len(found) > 10, "there is something to judge"
    return [
        f"{ratio:.2f}: {text!r} ({where})" for ratio, text, where in found if ratio < CONTRAST_MIN
    ]


def is_wider_than_screen(page: Page) -> bool:
    return bool(
        page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    )
