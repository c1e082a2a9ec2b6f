"""`twinbus completion`: a script that completes commands, options and choices in a shell.

Made from the parsers themselves, so it knows what this version knows.  The script asks nobody: what
it can offer stands in it.

    source <(twinbus completion bash)                                   # or zsh
    twinbus completion fish > ~/.config/fish/completions/twinbus.fish
"""

import argparse
import shlex
from collections.abc import Callable
from typing import Final

from twinbus.cli.arguments import Commands
from twinbus.cli.commands import COMMANDS
from twinbus.cli.parsers import CommandNode, tree


def add_arguments(commands: Commands) -> None:
    parser = commands.add_parser(
        "completion",
        description="Print a shell completion script.  Load it with "
        "source <(twinbus completion bash), the same for zsh, or for fish "
        "twinbus completion fish > ~/.config/fish/completions/twinbus.fish",
    )
    parser.add_argument("shell", choices=tuple(_SCRIPTS), metavar="SHELL", help="bash, zsh or fish")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from twinbus.cli.main import parser  # noqa: PLC0415  which imports this module

    print(_SCRIPTS[options.shell](tree(parser())))
    return 0


def _key(node: CommandNode) -> str:
    """How a script names the command that the line has come to."""
    return "/".join(("twinbus", *node.path))


def _summaries(node: CommandNode) -> dict[str, str]:
    """The commands below one, and what they do."""
    return {
        name: found.help or (COMMANDS[name].summary if name in COMMANDS else "")
        for name, found in node.below.items()
    }


def _options(node: CommandNode) -> dict[str, str]:
    options = {each.names[0]: each.help for each in node.arguments if each.names}
    return {**options, "--help": "show this help"}


# --- bash -----------------------------------------------------------------------------------------


def bash(root: CommandNode) -> str:
    nodes = list(root.walk())
    keys = "|".join(shlex.quote(_key(node)) for node in nodes[1:])
    lines = [
        "# twinbus completion for bash",
        "_twinbus() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"',
        '    local path="twinbus" each words=""',
        '    for each in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        f'        case "$path/$each" in {keys}) path="$path/$each" ;; esac',
        "    done",
        '    case "$path $previous" in',
    ]
    for node in nodes:
        for argument in node.arguments:
            if not argument.names or not argument.metavar:
                continue
            key = shlex.quote(f"{_key(node)} {argument.names[0]}")
            if argument.is_file:
                do = 'compopt -o filenames; COMPREPLY=($(compgen -f -- "$word"))'
            else:
                choices = shlex.quote(" ".join(argument.choices))
                do = f'COMPREPLY=($(compgen -W {choices} -- "$word"))'
            lines.append(f"        {key}) {do}; return ;;")
    lines += ["    esac", '    case "$path" in']
    for node in nodes:
        offered = [*node.below, *_options(node), *_word_choices(node)]
        lines.append(
            f"        {shlex.quote(_key(node))}) words={shlex.quote(' '.join(offered))} ;;"
        )
    lines += [
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -F _twinbus twinbus",
    ]
    return "\n".join(lines)


def _word_choices(node: CommandNode) -> list[str]:
    return [choice for each in node.arguments if not each.names for choice in each.choices]


# --- zsh ------------------------------------------------------------------------------------------


def zsh(root: CommandNode) -> str:
    nodes = list(root.walk())
    keys = "|".join(_key(node) for node in nodes[1:])
    lines = [
        "#compdef twinbus",
        "_twinbus() {",
        '    local path_="twinbus" each previous="${words[CURRENT-1]}"',
        "    local -a offered options",
        '    for each in "${(@)words[2,CURRENT-1]}"; do',
        f'        case "$path_/$each" in ({keys}) path_="$path_/$each" ;; esac',
        "    done",
        '    case "$path_ $previous" in',
    ]
    for node in nodes:
        for argument in node.arguments:
            if argument.names and argument.metavar:
                key = shlex.quote(f"{_key(node)} {argument.names[0]}")
                do = "_files" if argument.is_file else f"compadd -- {' '.join(argument.choices)}"
                lines.append(f"        ({key}) {do}; return ;;")
    lines += ["    esac", '    case "$path_" in']
    for node in nodes:
        words = {**_summaries(node), **dict.fromkeys(_word_choices(node), "")}
        lines += [
            f"        ({_key(node)})",
            f"            offered=({_described(words)})",
            f"            options=({_described(_options(node))}) ;;",
        ]
    lines += [
        "    esac",
        "    _describe -t commands command offered",
        "    _describe -o -t options option options",
        "}",
        # Loaded from a directory of completions it runs at once; sourced, it makes itself known.
        'if [ "$funcstack[1]" = _twinbus ]; then _twinbus "$@"; else compdef _twinbus twinbus; fi',
    ]
    return "\n".join(lines)


def _described(words: dict[str, str]) -> str:
    """`'name:what it does'` of each, as _describe takes them."""
    pairs = [f"{name}:{_plain(summary)}" if summary else name for name, summary in words.items()]
    return " ".join(shlex.quote(pair) for pair in pairs)


def _plain(summary: str) -> str:
    """One line without what shells and their lists take for something else."""
    return " ".join(summary.split()).replace(":", " -").replace("'", "’").replace("`", "")


# --- fish -----------------------------------------------------------------------------------------


def fish(root: CommandNode) -> str:
    nodes = list(root.walk())
    keys = " ".join(_key(node) for node in nodes[1:])
    lines = [
        "# twinbus completion for fish",
        "function __twinbus_path",
        "    set -l path twinbus",
        "    for each in (commandline -opc)[2..-1]",
        '        switch "$path/$each"',
        f"            case {keys}",
        '                set path "$path/$each"',
        "        end",
        "    end",
        "    echo $path",
        "end",
        "complete -c twinbus -f",
    ]
    for node in nodes:
        begin = f"complete -c twinbus -n 'test (__twinbus_path) = {_key(node)}'"
        words = {**_summaries(node), **dict.fromkeys(_word_choices(node), "")}
        lines += [f"{begin} -a {name} -d '{_plain(text)}'" for name, text in words.items()]
        for argument in node.arguments:
            if argument.names:
                value = ""
                if argument.metavar:
                    choices = " ".join(argument.choices)
                    value = " -r -F" if argument.is_file else f" -x -a '{choices}'"
                option = argument.names[0].removeprefix("--")
                lines.append(f"{begin} -l {option}{value} -d '{_plain(argument.help)}'")
    return "\n".join(lines)


_SCRIPTS: Final[dict[str, Callable[[CommandNode], str]]] = {"bash": bash, "zsh": zsh, "fish": fish}
