"""Compiles the hot modules with mypyc where that is possible; everything else is in pyproject.toml.

Pure Python is always a working build, so whatever is missing for compiling only costs speed.
Editable installs stay pure: an edit must never be shadowed by an older compiled module.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import setup

# One group, one shared library: calls between these modules then cost no more than calls in C.
HOT = (
    "clock.py",
    "amqp/*.py",
    "message/*.py",
    "entities/*.py",
    "entities/sql/*.py",
    "storage/records.py",
    "storage/log.py",
    "storage/store.py",
    "storage/bodies.py",
    "storage/decoder.py",
    "storage/snapshot.py",
    "storage/entity_index.py",
    "storage/recovery.py",
    "links/sink.py",
    "links/store_link.py",
    "links/remote/channel.py",
    "links/remote/codec.py",
    "links/remote/messages.py",
    "links/remote/operations.py",
    "links/remote/receiver_list.py",
    "links/remote/receivers.py",
    "links/remote/remote_store.py",
    "links/remote/results.py",
    "broker/broker.py",
    "broker/delivery.py",
    "broker/live_entities.py",
    "broker/receivers.py",
    "broker/session_*.py",
    "broker/store_run.py",
    "broker/timers.py",
    "broker/remote/*.py",
    "gateway/gateway.py",
    "gateway/counting/counters.py",
    "gateway/counting/meter.py",
    "gateway/directory/directory.py",
    "gateway/partitions/*.py",
    "server/amqp/receiving.py",
    "server/amqp/sending.py",
    "server/amqp/settlement.py",
    "pipeline/sink/composing.py",
    "pipeline/sink/keys.py",
    "pipeline/sink/parts.py",
    "pipeline/source/cells.py",
    "pipeline/source/decoding.py",
    "pipeline/source/runs.py",
    "pipeline/source/texts.py",
)
# types.py: subclasses of int, bytes and str have no native form.  descriptions.py: checks at run
# time what users wrote, which native attributes would refuse in their own words.
# catalog_entry.py: is on the way of no message.  field_values.py: numbers of any size and kind.
INTERPRETED = ("__init__.py", "types.py", "descriptions.py", "catalog_entry.py", "field_values.py")


def wanted() -> bool:
    if os.environ.get("TWINBUS_PURE") == "1" or {"develop", "editable_wheel"} & set(sys.argv):
        return False
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return shutil.which(compiler) is not None


def hot_modules(root: Path = Path()) -> list[str]:
    package = root / "src" / "twinbus"
    found = [path for pattern in HOT for path in sorted(package.glob(pattern))]
    return [str(path) for path in found if path.name not in INTERPRETED]


def compiled_modules() -> list[object]:
    if not wanted():
        return []
    try:
        from mypyc.build import mypycify  # noqa: PLC0415 - not there in a pure build
    except ImportError:
        return []
    # Tests ask for 0: the same C in a tenth of the time.
    level = os.environ.get("TWINBUS_OPT_LEVEL", "3")
    # What the hot modules stand beside may need packages that are not there while building.
    paths = ["--follow-imports=silent", *hot_modules()]
    modules = mypycify(paths, opt_level=level, debug_level="0", target_dir="build/mypyc")
    for module in modules:
        # Its tables are indented so deeply that gcc takes two minutes to look for this.
        module.extra_compile_args.append("-Wno-misleading-indentation")
    return list(modules)


if __name__ == "__main__":
    setup(ext_modules=compiled_modules())
