"""How results are written to standard output: as JSON for programs, as tables for people.

With `--json` nothing else may stand there: one document, or one document a line for what may be
long.
"""

import json
from collections.abc import Sequence


def print_json(document: object) -> None:
    print(json.dumps(document, indent=2))


def print_json_line(document: object) -> None:
    """One of many: whoever reads them need not wait for the last."""
    print(json.dumps(document), flush=True)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> None:
    """So many columns of text, the others numbers."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        cells = [
            cell.ljust(width) if column < texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
