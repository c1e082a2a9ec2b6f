"""The tables of docs/reference/cli.md, made from the parsers.

    python -m twinbus.cli.reference docs/reference/cli.md

Between `<!-- twinbus NAME -->` and `<!-- / -->` stands what that command takes (`NAME without
OTHER`: that OTHER does not).  Everything else on the page is written by people and left as it is.
tests/unit/cli/test_reference.py says when the page is out of date.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from twinbus.cli.main import parser
from twinbus.cli.parsers import Argument, CommandNode, tree

END: Final = "<!-- / -->"
BLOCK: Final = re.compile(
    r"<!-- twinbus ([a-z]+)( without ([a-z]+))? -->\n.*?" + re.escape(END), re.DOTALL
)


def rewritten(page: str) -> str:
    """The page with its tables as they have to be."""
    root = tree(parser())

    def block(match: re.Match[str]) -> str:
        for name in (match[1], match[3]):
            if name and name not in root.below:
                raise SystemExit(f"there is no command {name}: take it out of the page")
        known = root.below[match[3]].arguments if match[3] else ()
        first = match[0].partition("\n")[0]
        return f"{first}\n\n{tables(root.below[match[1]], known)}\n\n{END}"

    return BLOCK.sub(block, page)


def tables(node: CommandNode, known: Sequence[Argument] = ()) -> str:
    """What a command takes; of one with commands below it, what they share and what each adds."""
    if not node.below:
        return _options([each for each in node.arguments if each not in known], "option")
    leaves = [leaf for leaf in node.walk() if not leaf.below]
    lines = [f"| `{usage(leaf)}` | {_cell(leaf.help)} |" for leaf in leaves]
    blocks = ["\n".join(["| command | |", "|---|---|", *lines])]
    shared = [each for each in leaves[0].arguments if _is_in_all(each, leaves)]
    if shared:
        blocks.append(_options(shared, "option of all"))
    for leaf in leaves:
        own = [each for each in leaf.arguments if each not in shared and each.names]
        if own:
            blocks.append(_options(own, f"option of `{' '.join(leaf.path[1:])}`"))
    return "\n\n".join(blocks)


def usage(node: CommandNode) -> str:
    """`twinbus queue create NAME`"""
    words = [each.metavar for each in node.arguments if not each.names]
    return " ".join(["twinbus", *node.path, *words])


def _is_in_all(argument: Argument, leaves: Sequence[CommandNode]) -> bool:
    return bool(argument.names) and all(argument in leaf.arguments for leaf in leaves)


def _options(arguments: Sequence[Argument], title: str) -> str:
    if not arguments:
        return "Takes no options."
    lines = [f"| {title} | meaning |", "|---|---|"]
    for each in arguments:
        name = " ".join([*each.names[:1], *([each.metavar] if each.metavar else [])])
        meaning = _cell(each.help)
        missing = [choice for choice in each.choices if choice not in each.help]
        if missing and len(each.choices) < 10:
            meaning += ": " + ", ".join(f"`{choice}`" for choice in each.choices)
        if each.is_required and each.names:
            meaning += "; required"
        lines.append(f"| `{name}` | {meaning} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(words: Sequence[str]) -> int:
    for name in words:
        path = Path(name)
        path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
