"""docs/reference/spark.md says what the code says: every option and every column, none else."""

import re
from pathlib import Path

from twinbus.pipeline.options import SOURCE_OPTIONS
from twinbus.pipeline.schema import AMQP, COLUMNS, DESTINATION
from twinbus.pipeline.sink.options import SINK_OPTIONS

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "spark.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The first table below a heading, without its head."""
    below = PAGE.partition(f"\n{heading}\n")[2]
    found = re.search(r"(?:^\|.*\|\n)+", below, flags=re.MULTILINE)
    assert found is not None
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()[2:]
    ]


def test_options_of_the_source() -> None:
    rows = [(option, meaning) for option, meaning, _ in table("## Reading")]
    assert rows == [(f"`{name}`", meaning) for name, meaning in SOURCE_OPTIONS.items()]


def test_options_of_the_sink() -> None:
    rows = [(option, meaning) for option, meaning, _ in table("## Writing")]
    assert rows == [(f"`{name}`", meaning) for name, meaning in SINK_OPTIONS.items()]


def test_columns() -> None:
    assert table("### Columns") == [
        [
            f"`{column.name}`",
            column.spark.simpleString(),
            "yes" if column.is_sent else "",
            column.meaning,
        ]
        for column in (*COLUMNS, AMQP, DESTINATION)
    ]
