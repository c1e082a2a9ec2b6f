"""docs/reference/pairing.md says what the code says (P-8: the table of errors is in the docs)."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from twinbus.pairing import errors, events
from twinbus.pairing.classification import table
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions

pytestmark = pytest.mark.proves("P-8")

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "pairing.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.proves("P-8")
@pytest.mark.feature("pairing.failover")
def test_the_table_of_errors() -> None:
    """Every exception of the SDK, under both policies."""
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| (\w+) \|$", section("What an error does"), re.MULTILINE
    )
    assert rows == table()


@pytest.mark.feature("pairing.events")
def test_every_event_with_its_fields() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| ", section("Events"), re.MULTILINE))
    for event in events.Event.__args__:
        fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(event))
        assert rows.pop(event.__name__) == fields
    assert rows == {}


@pytest.mark.feature("pairing.events")
@pytest.mark.parametrize("status", [events.EntityStatus, events.BacklogQueueStatus])
def test_every_field_of_a_status(status: type) -> None:
    names = {field.name for field in dataclasses.fields(status)} - {"entity", "queue"}
    assert [name for name in names if f"`{name}`" not in section("Status")] == []


def test_every_error() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", section("Errors"), re.MULTILINE))
    ours = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and each.__module__ == errors.__name__
    }
    assert rows == ours


@pytest.mark.proves("P-2")
def test_every_option() -> None:
    """Each option stands there with its default."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| ", section("Options"), re.MULTILINE))
    parameters = inspect.signature(SendAvailabilityPairedNamespaceOptions).parameters
    options = {
        name: parameter.default
        for name, parameter in parameters.items()
        if not name.startswith("secondary_")
    }
    assert rows.keys() == options.keys()
    for name, default in options.items():
        shown = rows[name].replace("`", "").replace('"', "").removesuffix(" s")
        assert shown == ("from the host" if default is None else str(default)), name
