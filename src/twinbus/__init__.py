"""twinbus: a durable, self-hosted service bus that speaks Azure Service Bus's protocol.

The hot modules exist twice in a built wheel: as Python, and compiled by mypyc.  Importing the
package takes the compiled ones where they are; `TWINBUS_PURE=1` takes the Python ones, which is the
way to a readable traceback and to a debugger.
"""

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

PRODUCT_NAME = "twinbus"
__version__ = "0.1.0"


class _PureFinder:
    """Finds twinbus's modules as .py files only, never as the compiled ones beside them."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not name.startswith(__name__ + "."):
            return None
        source = (importlib.machinery.SourceFileLoader, importlib.machinery.SOURCE_SUFFIXES)
        for folder in path:
            spec = importlib.machinery.FileFinder(folder, source).find_spec(name)
            if spec is not None and spec.loader is not None:
                return spec
        return None


if os.environ.get("TWINBUS_PURE") == "1":
    sys.meta_path.insert(0, _PureFinder)


def build() -> str:
    """`compiled` or `pure`: how the hot modules of this process were loaded."""
    from twinbus.amqp import decoding  # noqa: PLC0415 - only who asks pays for the import

    return "pure" if str(decoding.__file__).endswith(".py") else "compiled"


def version_text() -> str:
    return f"twinbus {__version__} ({build()})"
