"""What pages show between fences: every block with its page and its language."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Pages that people follow step by step.
FOLLOWED = [ROOT / "README.md", DOCS / "start.md", *sorted((DOCS / "how-to").glob("*.md"))]
EVERY = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One block between fences."""

    page: str  # from the root: docs/start.md
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.strip().splitlines()[0][:60]}"

    def has(self, words: str) -> bool:
        return words in self.text


def blocks(page: Path, *languages: str) -> list[Block]:
    name = page.relative_to(ROOT).as_posix()
    found = [Block(name, each[1], each[2]) for each in _BLOCK.finditer(page.read_text())]
    return [block for block in found if block.language in languages]


def commands(block: Block) -> list[list[str]]:
    """Its `twinbus` commands, each as the words behind the program's name."""
    text = block.text.replace("\\\n", " ")
    found: list[list[str]] = []
    for line in text.splitlines():
        if "twinbus " not in line:
            continue
        line = line.strip().removeprefix("$ ")
        inside = re.findall(r"\$\(([^)]*)\)", line)  # eval "$(twinbus env --data DIR)"
        for part in (part for each in (line, *inside) for part in _parts(each)):
            while part and re.match(r"\w+=", part[0]):
                del part[0]
            if part[:1] == ["twinbus"]:
                found.append(part[1:])
    return found


def _parts(line: str) -> list[list[str]]:
    """A line's commands: what stands between pipes, redirections and the like."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("();<>|&"):
            parts.append([])
        else:
            parts[-1].append(word)
    return parts
