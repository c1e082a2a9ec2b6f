"""The trace that a message belongs to, in W3C's form: `00-<trace>-<span>-<flags>`.

SDKs put it into the application properties `traceparent` and `Diagnostic-Id` of their messages.  We
search the stored bytes for it: a short text or binary after its name.  That takes less than a
microsecond, and a message without it is not examined any further.
"""

import re
from typing import Final

_SEARCHED: Final = 65_536  # properties come before the body, and are no longer than this
# A search for plain bytes is ten times as fast as one for a pattern.
_NAMES: Final = (b"traceparent", b"Diagnostic-Id")
_PARENT: Final = re.compile(rb"[\xa0\xa1\xa3]\x37(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})")
_STATE_NAME: Final = b"tracestate"
_STATE: Final = re.compile(rb"[\xa0\xa1\xa3](.)([\x20-\x7e]{1,255})", re.DOTALL)


def find_parent(stored: bytes) -> str | None:
    """The `traceparent` of a message, if it has one."""
    for name in _NAMES:
        at = stored.find(name, 0, _SEARCHED)
        if at >= 0:
            found = _PARENT.match(stored, at + len(name))
            if found is not None:
                return found[1].decode("ascii")
    return None


def find_state(stored: bytes) -> str | None:
    """Its `tracestate`: what the systems on the way want to remember."""
    at = stored.find(_STATE_NAME, 0, _SEARCHED)
    found = _STATE.match(stored, at + len(_STATE_NAME)) if at >= 0 else None
    return None if found is None else found[2][: found[1][0]].decode("ascii")
