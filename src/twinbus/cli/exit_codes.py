"""What a command ends with; the same numbers mean the same everywhere."""

from typing import Final

from twinbus.errors import ConfigError

FAILED: Final = 1  # the reason is on standard error
NONSENSE: Final = 2  # the arguments make no sense
NO: Final = 3  # it worked, and the answer is no: a check has failed, something is lost or left
INTERRUPTED: Final = 130


class Nonsense(ConfigError):
    """Arguments that make no sense together, which only the command itself could see."""
