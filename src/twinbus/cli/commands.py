"""Every command by its name: the module that has it, and what `twinbus` alone says of it.

A table that imports nothing, so that the overview and a mistyped command cost no time.
"""

from typing import Final, NamedTuple


class Command(NamedTuple):
    """A command, and where it is shown."""

    module: str  # in this package
    group: str
    summary: str


_SERVER: Final = "Server"
_ENTITIES: Final = "Entities"
_MESSAGES: Final = "Messages"
_OUTAGES: Final = "Outages and pairs"
_DATA: Final = "Data and cost"
_AROUND: Final = "Tools"

COMMANDS: Final[dict[str, Command]] = {
    "serve": Command("serve", _SERVER, "run a bus in the foreground"),
    "emulator": Command("emulator", _SERVER, "run a drop-in for Microsoft's emulator"),
    "env": Command("env", _SERVER, "print shell lines that point clients at a server"),
    "status": Command("status", _SERVER, "show the state of a running server and its entities"),
    "verify": Command("verify", _SERVER, "verify every checksum in a data directory"),
    "queue": Command("entities.queue", _ENTITIES, "create, list, show, update and delete queues"),
    "topic": Command("entities.topic", _ENTITIES, "create, list, show, update and delete topics"),
    "subscription": Command(
        "entities.subscription", _ENTITIES, "create, list, show, update and delete subscriptions"
    ),
    "rule": Command("entities.rule", _ENTITIES, "create, list, show and delete rules"),
    "send": Command("messages.send", _MESSAGES, "send messages"),
    "receive": Command("messages.receive", _MESSAGES, "receive messages and settle them"),
    "peek": Command("messages.bulk", _MESSAGES, "look at messages without receiving them"),
    "purge": Command("messages.bulk", _MESSAGES, "delete messages that nobody has locked"),
    "undefer": Command("messages.bulk", _MESSAGES, "make deferred messages active again"),
    "replay": Command("messages.bulk", _MESSAGES, "move dead letters back to their entity"),
    "fault": Command("fault", _OUTAGES, "inject faults on purpose, and clear them"),
    "pair": Command("pair.command", _OUTAGES, "show the backlog of a pair, and drain it"),
    "pipeline": Command("pipeline.command", _DATA, "move and examine messages in bulk, with Spark"),
    "cost": Command("cost.command", _DATA, "show metered usage, and estimate the cost of pairing"),
    "drill": Command("drill", _OUTAGES, "rehearse an outage on this machine"),
    "bench": Command("bench.command", _AROUND, "measure the throughput and latency of a bus"),
    "doctor": Command("doctor.command", _AROUND, "check this machine and suggest fixes"),
    "completion": Command("completion", _AROUND, "print a shell completion script"),
}


def overview() -> str:
    """All commands by group."""
    lines = [
        "usage: twinbus COMMAND …",
        "",
        "A durable service bus that speaks Azure Service Bus's protocol.",
    ]
    width = max(map(len, COMMANDS)) + 2
    for group in dict.fromkeys(command.group for command in COMMANDS.values()):
        lines += ["", f"{group}:"]
        lines += [
            f"  {name.ljust(width)}{command.summary}"
            for name, command in COMMANDS.items()
            if command.group == group
        ]
    lines += [
        "",
        "To get started, run `twinbus serve --data DIR`.  In another terminal, run",
        '`eval "$(twinbus env --data DIR)"`, `twinbus queue create q`, `twinbus send q hello`.',
        "`twinbus COMMAND --help` describes a command; `twinbus --version` prints the version.",
    ]
    return "\n".join(lines)
