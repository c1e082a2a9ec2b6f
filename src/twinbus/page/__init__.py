"""What the browser gets: one page, its style and its scripts, as they lie beside this file.

The server hands them out at `/` and `/$page/<file>` and asks here for their bytes.  No build step,
no framework, no address of anybody else; what a script shows it writes as text, never as markup.
A file that is not in the list is not part of the page, whatever lies in this folder.
"""

from importlib import resources
from typing import Final

__all__ = ["FILES", "INDEX", "read"]

INDEX: Final = "index.html"

_SCRIPT: Final = "text/javascript; charset=utf-8"

# File → what it is to a browser.
FILES: Final = {
    INDEX: "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "views.css": "text/css; charset=utf-8",
    "mark.svg": "image/svg+xml",
    "body.js": _SCRIPT,
    "bus.js": _SCRIPT,
    "confirm.js": _SCRIPT,
    "cost.js": _SCRIPT,
    "details.js": _SCRIPT,
    "dom.js": _SCRIPT,
    "entities.js": _SCRIPT,
    "entity.js": _SCRIPT,
    "faultkinds.js": _SCRIPT,
    "faults.js": _SCRIPT,
    "format.js": _SCRIPT,
    "keys.js": _SCRIPT,
    "live.js": _SCRIPT,
    "machine.js": _SCRIPT,
    "main.js": _SCRIPT,
    "message.js": _SCRIPT,
    "messages.js": _SCRIPT,
    "notices.js": _SCRIPT,
    "overview.js": _SCRIPT,
    "pairs.js": _SCRIPT,
    "partitions.js": _SCRIPT,
    "routes.js": _SCRIPT,
    "signin.js": _SCRIPT,
    "signing.js": _SCRIPT,
    "sparkline.js": _SCRIPT,
    "theme.js": _SCRIPT,
}


def read(name: str) -> bytes:
    """The bytes of one of FILES."""
    assert name in FILES, f"{name} is not part of the page"
    return resources.files(__name__).joinpath(name).read_bytes()
