"""Tools for tests: a bus of your own, simulated disks and clocks, a real server to torment.

Public, so that you can test your own code against twinbus the way twinbus tests itself:
`Bus` is a server as a context manager, and the pytest plugin (plugin.py) has the fixture
`servicebus`, a fresh namespace for each test.

Loaded on demand: pytest loads the plugin, and so this package, at every start.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.testing.bus import Bus, FreshNamespace
    from twinbus.testing.disk import CrashMode, PowerCut, SimDisk

_MODULES: Final = {
    "Bus": "bus",
    "FreshNamespace": "bus",
    "CrashMode": "disk",
    "PowerCut": "disk",
    "SimDisk": "disk",
}

__all__ = ["Bus", "CrashMode", "FreshNamespace", "PowerCut", "SimDisk"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
