"""Which modules are compiled: none drops out by moving, and none comes in by chance."""

import importlib
import runpy
from pathlib import Path

import twinbus

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("compiled_modules.txt")


def test_every_hot_module_is_on_the_list() -> None:
    """Whoever moves, adds or divides one changes the list, and so says that it is meant."""
    found = runpy.run_path(str(ROOT / "setup.py"))["hot_modules"](ROOT)
    names = sorted(Path(each).relative_to(ROOT / "src").as_posix() for each in found)
    assert names == LIST.read_text().split()


def test_the_build_is_whole() -> None:
    """In a compiled build all of them are, in a pure one none."""
    kinds = set()
    for name in LIST.read_text().split():
        module = importlib.import_module(name.removesuffix(".py").replace("/", "."))
        assert module.__file__ is not None
        kinds.add("pure" if module.__file__.endswith(".py") else "compiled")
    assert kinds == {twinbus.build()}
