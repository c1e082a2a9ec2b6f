"""Which trace a message belongs to, read from its stored bytes."""

import pytest

from twinbus.telemetry.trace_context import find_parent, find_state

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def entry(name: bytes, value: bytes, code: bytes = b"\xa1") -> bytes:
    """As it stands in the application properties: two short texts."""
    return b"\xa1" + bytes([len(name)]) + name + code + bytes([len(value)]) + value


@pytest.mark.parametrize("name", [b"traceparent", b"Diagnostic-Id"])
@pytest.mark.parametrize("code", [b"\xa0", b"\xa1"])
def test_as_sdks_write_it(name: bytes, code: bytes) -> None:
    stored = b"head" + entry(b"x", b"y") + entry(name, PARENT.encode(), code) + b"body"
    assert find_parent(stored) == PARENT


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"traceparent",
        entry(b"traceparent", b"00-4bf92f-00f067aa0ba902b7-01"),
        entry(b"traceparent", PARENT.upper().encode()),
        entry(b"traceparent", PARENT.encode()[:-1]),
        b"x" * 65_536 + entry(b"traceparent", PARENT.encode()),  # somebody's body
        PARENT.encode(),
    ],
)
def test_no_trace(stored: bytes) -> None:
    assert find_parent(stored) is None


def test_state() -> None:
    stored = entry(b"tracestate", b"congo=t61rcWkgMzE") + entry(b"z", b"more")
    assert find_state(stored) == "congo=t61rcWkgMzE"
    assert find_state(b"tracestate") is None
