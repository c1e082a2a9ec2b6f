"""Messages for the page: show them, resubmit dead letters, delete some.

Uses the commands of `twinbus peek`, `replay` and `purge` (amqp/management), metered and counted the
same way.  Changes are made message by message, and each message has its own result.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from twinbus.entities.commands import Reply
from twinbus.entities.selections import (
    NUMBERS_END,
    Browse,
    DeleteMessages,
    Resubmit,
    Selected,
    Selection,
    SelectionCommand,
)
from twinbus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    InvalidOperation,
    ServiceError,
    Unavailable,
)
from twinbus.gateway.access.shared_access import LISTEN, MANAGE
from twinbus.gateway.directory.addresses import parse_address
from twinbus.limits import PAGE_MESSAGES_MAX, SEQUENCE_NUMBERS_MAX
from twinbus.links.request import ask
from twinbus.server.http.access import HttpAccess
from twinbus.server.http.addressed_entity import AddressedEntity, find_addressed
from twinbus.server.http.exchange import Request, Response, read_json
from twinbus.server.http.page.answers import json_answer, query_number
from twinbus.server.http.page.message import STATES, message_document

BODY_BYTES_MAX: Final = 65_536
COUNT_DEFAULT: Final = 50
_AT_A_TIME: Final = 16  # changes under way; partitioned entities allow a hundred in all
_DONE: Final = {"resubmit": "resubmitted", "delete": "deleted"}


class PageMessages:
    """Answers requests about messages."""

    def __init__(self, access: HttpAccess, is_cut_off: Callable[[str], bool]) -> None:
        """`is_cut_off` says whether a fault keeps everybody from a namespace."""
        self._access = access
        self._is_cut_off = is_cut_off

    async def browse(self, request: Request) -> Response:
        addressed = self._find(request, request.query.get("entity", ""), LISTEN)
        selection = Selection()
        selection.from_sequence_number = query_number(request, "from", 0, 0, NUMBERS_END - 1)
        state = request.query.get("state", "")
        if state and state not in STATES:
            raise ArgumentInvalid("state must be one of " + ", ".join(STATES) + ".")
        if state:
            selection.states = [STATES[state]]
        count = query_number(request, "count", COUNT_DEFAULT, 1, PAGE_MESSAGES_MAX)
        command = Browse(addressed.entity.entity_id, addressed.address.subqueue, selection, count)
        selected = await _ask(addressed, command)
        following = selected.next_sequence_number
        document = {
            "entity": addressed.address.path,
            "next": str(following) if following else None,
            "messages": [message_document(each) for each in selected.delivered],
        }
        return json_answer(200, document)

    async def change(self, request: Request, what: str) -> Response:
        """Send back, or delete, what the request names."""
        try:
            path, numbers = read_change(request.body)
        except ServiceError:
            self._access.authorize(request, MANAGE, "")  # a stranger is told nothing else
            raise
        addressed = self._find(request, path, MANAGE)
        if what == "resubmit" and not addressed.address.subqueue:
            raise InvalidOperation("Only dead letters can be sent back; name a dead-letter queue.")
        results: list[dict[str, Any]] = []
        for first in range(0, len(numbers), _AT_A_TIME):
            some = numbers[first : first + _AT_A_TIME]
            results += await asyncio.gather(*(_change(addressed, what, number) for number in some))
        done = sum(each["result"] == _DONE[what] for each in results)
        return json_answer(
            200, {"entity": addressed.address.path, "done": done, "results": results}
        )

    def _find(self, request: Request, path: str, right: str) -> AddressedEntity:
        address = parse_address(path)
        namespace = self._access.authorize(request, right, address.path)
        if self._is_cut_off(namespace.name.lower()):
            raise Unavailable("The namespace cannot be contacted: a fault is in force.")
        if address.is_management or not address.name:
            raise ArgumentInvalid("entity must be the path of a queue or a subscription.")
        return find_addressed(namespace, address)


async def _ask(addressed: AddressedEntity, command: SelectionCommand) -> Selected:
    """Have a command carried out; it is counted whether that works or not."""
    metrics = addressed.entity.metrics
    try:
        selected: Selected = await ask(addressed.gateway, command)
    except ServiceError as error:
        metrics.answered(error)
        raise
    reply = Reply(command, selected, None)
    metrics.replied(reply)
    addressed.meter.replied(reply)
    return selected


async def _change(addressed: AddressedEntity, what: str, number: int) -> dict[str, Any]:
    """One message: what became of it, and why."""
    kind = Resubmit if what == "resubmit" else DeleteMessages
    reason = None
    try:
        found = await _ask(
            addressed,
            kind(addressed.entity.entity_id, addressed.address.subqueue, _only(number), 1),
        )
        result = _DONE[what] if found.count else await _why_not(addressed, number)
    except ServiceError as error:
        result, reason = "failed", str(error)
    return {"sequence_number": str(number), "result": result, "reason": reason}


async def _why_not(addressed: AddressedEntity, number: int) -> str:
    """It is not there, or somebody has it."""
    browse = Browse(addressed.entity.entity_id, addressed.address.subqueue, _only(number), 1)
    return "locked" if (await _ask(addressed, browse)).count else "not found"


def _only(number: int) -> Selection:
    selection = Selection()
    selection.from_sequence_number = number
    selection.to_sequence_number = number + 1
    return selection


def read_change(body: bytes) -> tuple[str, list[int]]:
    """The path of an entity, and sequence numbers: as numbers, or as texts of digits."""
    if len(body) > BODY_BYTES_MAX:
        raise ArgumentOutOfRange(f"A request can have at most {BODY_BYTES_MAX} bytes.")
    given = read_json(body)
    if not isinstance(given, dict) or set(given) != {"entity", "sequence_numbers"}:
        raise ArgumentInvalid("A request must be {'entity': …, 'sequence_numbers': […]} as JSON.")
    path, numbers = given["entity"], given["sequence_numbers"]
    if not isinstance(path, str) or not isinstance(numbers, list):
        raise ArgumentInvalid("'entity' must be text, and 'sequence_numbers' a list.")
    if not 1 <= len(numbers) <= SEQUENCE_NUMBERS_MAX:
        raise ArgumentOutOfRange(f"A request needs 1 to {SEQUENCE_NUMBERS_MAX} sequence numbers.")
    return path, [_number(each) for each in numbers]


def _number(given: object) -> int:
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 20:
        given = int(given)
    if type(given) is not int or not 0 <= given < NUMBERS_END:
        raise ArgumentInvalid("A sequence number must be a whole number, or a string of digits.")
    return given
