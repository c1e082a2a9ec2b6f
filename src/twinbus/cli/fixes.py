"""What to do about an error: the second of the two lines that a person sees.

An error of ours that is about arguments, files or the machine has both in its text, `reason; fix`.
What a bus answers names the reason only.  The fix then depends on the kind of error, and on what
was asked: for a name that is not there, the nearest one that is.

To find out more a server may be asked, shortly and once; what goes wrong with that changes nothing.
"""

import argparse
import difflib
import json
import os
from collections.abc import Iterable, Iterator
from typing import Final

import twinbus
from twinbus import errors
from twinbus.cli.arguments import CONNECTION_STRING
from twinbus.errors import ServiceError, TwinbusError

_SEPARATOR: Final = "; "
_NAMES_MAX: Final = 5_000  # entities that are looked through for a name like the one that is wrong
_TEXT_CHARS_MAX: Final = 1_000

_BY_KIND: Final[dict[type[TwinbusError], str]] = {
    errors.EntityNotFound: "`twinbus queue list` and `twinbus topic list` list the entities",
    errors.EntityAlreadyExists: "choose another name, or delete the existing one first",
    errors.EntityDisabled: "set its status to Active, or use another entity",
    errors.Unauthorized: "check the key name and key in the connection string, and that its rule "
    "grants the right for this (Listen, Send or Manage)",
    errors.MessageLockLost: "receive the message again; give the entity a longer lock duration",
    errors.MessageNotFound: "`twinbus peek` lists the messages",
    errors.MessageSizeExceeded: "send a smaller message, or serve with the `--limits` of a "
    "larger tier",
    errors.SessionCannotBeLocked: "another receiver has the session: wait until it is free, or "
    "choose another",
    errors.SessionLockLost: "accept the session again",
    errors.QuotaExceeded: "make room: receive or purge messages, or raise the limit",
    errors.DiskFull: "make room on the server's disk, or receive and purge messages",
    errors.ServerBusy: "wait and try again; see docs/operating/throttling.md",
    errors.OperationTimeout: "try again; `twinbus doctor` checks whether the server answers",
    errors.Unavailable: "try again in a moment; `GET /health` says which part is down",
    errors.NotSupported: "`twinbus doctor` shows whether it is a twinbus, and which version",
    errors.LogDamaged: "nothing was changed; run `twinbus verify`, or restore from a backup",
    errors.DirectoryInUse: "stop the server that uses it, or set --data to another directory",
    errors.StorageError: "check the disk and its free space, then start again",
}
_LOST: Final = (
    "check that the server is still running, then try again; the interrupted request may or may "
    "not have been carried out"
)
_SESSIONS: Final = {
    "receive": "pass --session ID or --next-session if the entity has sessions, else neither",
    "send": "pass --session-id ID",
}
_NO_SESSIONS: Final = "omit --session for an entity without sessions"


def explain(error: TwinbusError, options: argparse.Namespace) -> tuple[str, str]:
    """The reason and the fix."""
    text = str(error)[:_TEXT_CHARS_MAX].strip() or type(error).__name__
    if isinstance(error, ServiceError):
        text = text.partition(" SubCode=")[0].rstrip(". ")
        other = _another_version(error, options)
        if other:
            return f"{text} ({other})", "use the same version of twinbus on both sides"
        return text, _of_service_error(error, text, options)
    if type(error).__name__ == "ConnectionLost":  # of the client, not imported just for this
        return text, _LOST
    reason, _, fix = text.partition(_SEPARATOR)
    return reason, fix or _by_kind(error) or _help(options)


def nearest(word: str, known: Iterable[str], form: str = "{}") -> str:
    """`did you mean …?`, or nothing if nothing is like it."""
    by_folded = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(word.casefold(), by_folded, 1, 0.6)
    return f"did you mean `{form.format(by_folded[found[0]])}`?" if found else ""


def _help(options: argparse.Namespace) -> str:
    action = getattr(options, "action", None)
    words = ["twinbus", options.command, *([action] if isinstance(action, str) else [])]
    return f"see `{' '.join(words)} --help`"


def _by_kind(error: TwinbusError) -> str:
    return next((_BY_KIND[kind] for kind in type(error).__mro__ if kind in _BY_KIND), "")


def _of_service_error(error: ServiceError, text: str, options: argparse.Namespace) -> str:
    if isinstance(error, errors.EntityNotFound):
        found = _nearest_entity(options)
        if found:
            return found
    if isinstance(error, errors.InvalidOperation) and "session" in text.lower():
        return _SESSIONS.get(options.command, _NO_SESSIONS)
    return _by_kind(error) or _help(options)


# --- asking the server ----------------------------------------------------------------------------


def _connection_string(options: argparse.Namespace) -> str:
    return getattr(options, "connection_string", None) or os.environ.get(CONNECTION_STRING, "")


def _nearest_entity(options: argparse.Namespace) -> str:
    """The name on this server that is most like the one that it does not know."""
    text = _connection_string(options)
    if not text:
        return ""
    for asked, known in _candidates(options, text):
        try:
            names = [name for _, name in zip(range(_NAMES_MAX), known, strict=False)]
        except (TwinbusError, OSError):
            return ""  # the key may send, but not list
        if asked not in names:
            return nearest(asked, names)
    return ""


def _candidates(options: argparse.Namespace, text: str) -> Iterator[tuple[str, Iterator[str]]]:
    """Each name on the way to what was asked for, with those that are there."""
    from twinbus.client.admin import QUEUE, RULE, SUBSCRIPTION, TOPIC, AdminClient, Kind  # noqa: PLC0415  only who errs pays for it

    client = AdminClient(text)

    def names_of(*kinds: Kind, below: tuple[str, ...] = ()) -> Iterator[str]:
        for kind in kinds:
            yield from (entry.name for entry in client.list(kind, below))

    entity = getattr(options, "entity", None) or getattr(options, "queue", None)
    for path in [entity] if isinstance(entity, str) else entity or ():
        topic, is_subscription, subscription = path.partition("/Subscriptions/")
        yield topic, names_of(*([TOPIC] if is_subscription else [QUEUE, TOPIC]))
        if is_subscription:
            yield subscription.partition("/")[0], names_of(SUBSCRIPTION, below=(topic,))
    if entity is None:
        given = vars(options)
        names = [given[each] for each in ("topic", "subscription", "name") if given.get(each)]
        kinds = (QUEUE,) if options.command == "queue" else (TOPIC, SUBSCRIPTION, RULE)
        for depth, (kind, name) in enumerate(zip(kinds, names, strict=False)):
            yield name, names_of(kind, below=tuple(names[:depth]))


def _another_version(error: ServiceError, options: argparse.Namespace) -> str:
    """What the server is, if that explains that it does not know what was asked."""
    is_unknown = isinstance(error, errors.NotSupported) or type(error) is ServiceError
    is_unknown = is_unknown or str(error).startswith("HTTP status ")  # without a word about it
    text = _connection_string(options)
    if not is_unknown or not text:
        return ""
    from twinbus.client.http import HttpClient  # noqa: PLC0415  only who errs pays for it

    try:
        _, answer = HttpClient(text).exchange("GET", "/health", None, {})
        version = json.loads(answer).get("version")
    except (TwinbusError, ValueError, AttributeError):
        return ""
    if not isinstance(version, str) or version == twinbus.__version__:
        return ""
    return f"the server is twinbus {version[:64]}, this is {twinbus.__version__}"
