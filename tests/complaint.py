"""How the command line complains: two lines, what is wrong and what to do, never a traceback."""


def complaint(text: str) -> str:
    """What was said on standard error, as `reason; fix`."""
    assert "Traceback" not in text, text
    lines = text.splitlines()
    assert len(lines) == 2, text
    reason, fix = lines
    assert reason.startswith("twinbus: "), text
    assert fix.startswith("  fix: "), text
    said = reason.removeprefix("twinbus: "), fix.removeprefix("  fix: ")
    assert all(said), text
    return "; ".join(said)
