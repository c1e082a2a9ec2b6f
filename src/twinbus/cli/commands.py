"""Every command by its name: the module that has it, and what `twinbus` alone says of it.

A table that imports nothing, so that the overview and a mistyped command cost no time.
"""

from typing import Final, NamedTuple


class Command(NamedTuple):
    """A command, and where it is shown."""

    module: str  # in this package
    group: str
    summary: str


_SERVER: Final = "A server"
_ENTITIES: Final = "Entities"
_MESSAGES: Final = "Messages"
_OUTAGES: Final = "Outages and pairs"
_DATA: Final = "Data and cost"
_AROUND: Final = "Around it"

COMMANDS: Final[dict[str, Command]] = {
    "serve": Command("serve", _SERVER, "run a bus in the foreground"),
    "emulator": Command("emulator", _SERVER, "run a bus in the place of Microsoft's emulator"),
    "env": Command("env", _SERVER, "shell lines that point clients at a running server"),
    "status": Command("status", _SERVER, "how a running server and its entities stand"),
    "verify": Command("verify", _SERVER, "check every checksum of a data directory"),
    "queue": Command("entities.queue", _ENTITIES, "create, list, show and delete queues"),
    "topic": Command("entities.topic", _ENTITIES, "create, list, show and delete topics"),
    "subscription": Command(
        "entities.subscription", _ENTITIES, "create, list, show and delete subscriptions"
    ),
    "rule": Command("entities.rule", _ENTITIES, "create, list, show and delete rules"),
    "send": Command("messages.send", _MESSAGES, "send messages"),
    "receive": Command("messages.receive", _MESSAGES, "receive messages and settle them"),
    "peek": Command("messages.bulk", _MESSAGES, "look at messages without receiving them"),
    "purge": Command("messages.bulk", _MESSAGES, "delete messages that nobody has locked"),
    "undefer": Command("messages.bulk", _MESSAGES, "make deferred messages active again"),
    "replay": Command("messages.bulk", _MESSAGES, "put dead letters back into their entity"),
    "fault": Command("fault", _OUTAGES, "make something go wrong on purpose, and end it"),
    "pair": Command("pair.command", _OUTAGES, "look at the backlog of a pair, and bring it home"),
    "pipeline": Command("pipeline.command", _DATA, "move and examine many messages, with Spark"),
    "cost": Command("cost.command", _DATA, "what was metered, and what pairing will cost"),
    "drill": Command("drill", _OUTAGES, "rehearse an outage on this machine, with a verdict"),
    "bench": Command("bench.command", _AROUND, "measure a bus: rates and latencies"),
    "doctor": Command("doctor.command", _AROUND, "check this machine, and say what to do"),
    "completion": Command("completion", _AROUND, "a script that completes commands in a shell"),
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
        "To begin: `twinbus serve --data DIR`, and in another terminal",
        '`eval "$(twinbus env --data DIR)"`, `twinbus queue create q`, `twinbus send q hello`.',
        "`twinbus COMMAND --help` says more; `twinbus --version` says which this is.",
    ]
    return "\n".join(lines)
