"""`twinbus completion`: asked by a real bash; the other shells' scripts name everything."""

import shutil
import subprocess

import pytest

from twinbus.cli.completion import bash, fish, zsh
from twinbus.cli.main import parser
from twinbus.cli.parsers import tree

pytestmark = pytest.mark.feature("cli.completion")

ROOT = tree(parser())


def offers(*lines: str) -> list[list[str]]:
    """What bash offers for the last word of each line."""
    asks = "\n".join(
        f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=(); "
        '_twinbus 2> /dev/null; echo "${COMPREPLY[*]}"'
        for line in lines
    )
    script = f"{bash(ROOT)}\n{asks}"
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return [line.split() for line in ended.stdout.splitlines()]


def test_bash(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("files")
    (folder / "config.json").touch()
    found = offers(
        "twinbus se",
        "twinbus queue ''",
        "twinbus queue create orders --max",
        "twinbus serve --limits ''",
        "twinbus pipeline dead-letters r",
        "twinbus pipeline dead-letters show --samp",
        "twinbus fault add th",
        f"twinbus serve --config {folder}/con",
        "twinbus serve --port ''",
        "twinbus --json queue li",
    )
    assert found == [
        ["serve", "send"],
        ["create", "list", "show", "update", "delete", "--help"],
        ["--max-delivery-count", "--max-size-in-megabytes"],
        ["basic", "standard", "premium", "premium-2017", "unlimited"],
        ["resubmit"],
        ["--samples"],
        ["throttle"],
        [f"{folder}/config.json"],
        [],
        ["list"],
    ]


def test_every_command_and_option_is_offered() -> None:
    scripts = {"bash": bash(ROOT), "zsh": zsh(ROOT), "fish": fish(ROOT)}
    for shell, script in scripts.items():
        for node in ROOT.walk():
            assert "/".join(("twinbus", *node.path)) in script, (shell, node.path)
            for argument in node.arguments:
                for name in argument.names[:1]:
                    shown = f"-l {name[2:]} " if shell == "fish" else name
                    assert shown in script, (shell, node.path, name)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_can_be_read(shell: str) -> None:
    """By the shell itself where the machine has it, otherwise by what all three agree on."""
    script = {"bash": bash, "zsh": zsh, "fish": fish}[shell](ROOT)
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
    for line in script.splitlines():
        assert line.count("'") % 2 == 0, line
