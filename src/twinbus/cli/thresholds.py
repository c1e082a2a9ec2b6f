"""`--throttle NAME=VALUE`: the thresholds past which a server refuses work."""

from dataclasses import replace
from typing import Any, Final

from twinbus.errors import ConfigError
from twinbus.limits import THRESHOLDS_DEFAULT, Thresholds

_MEGABYTE: Final = 1_048_576
# What a threshold is called here → the setting, and how many of its units one is.
_SETTINGS: Final = {
    "cpu": ("cpu_share_max", 1),
    "lag": ("lag_ms_max", 1),
    "memory": ("memory_bytes_max", _MEGABYTE),
    "disk": ("disk_free_bytes_min", _MEGABYTE),
    "operations": ("operations_max", 1),
}
_VALUE_MAX: Final = 1_000_000_000


def read_thresholds(texts: list[str]) -> Thresholds:
    """The defaults, with what the command line says in their place."""
    settings: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        setting, unit = _SETTINGS.get(name, ("", 0))
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not setting or not 0 <= number <= _VALUE_MAX or (setting == "lag_ms_max" and not number):
            raise ConfigError(
                f"--throttle {text[:64]!r} is not a threshold; use one of {', '.join(_SETTINGS)}, "
                "then `=` and a number"
            )
        settings[setting] = number if name == "cpu" else int(number * unit)
    return replace(THRESHOLDS_DEFAULT, **settings)
