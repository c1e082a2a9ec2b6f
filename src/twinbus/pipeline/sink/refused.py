"""What is said of a row that cannot be sent.  Apart, since an exception is nothing to compile."""

from twinbus.errors import TwinbusError


class RowRefused(TwinbusError):
    """A row that cannot be sent: its number in the task, where it was to go, and why."""

    def __init__(self, row: int, destination: str | None, reason: object) -> None:
        where = "" if destination is None else f" to '{destination[:64]}'"
        super().__init__(f"row {row} of the task{where}: {reason}")
        self.row = row
        self.destination = destination
