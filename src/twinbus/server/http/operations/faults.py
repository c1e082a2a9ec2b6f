"""Faults over HTTP: JSON in, JSON out (docs/reference/faults.md).

    GET     /$faults         those in force
    POST    /$faults         a new one: 201
    DELETE  /$faults/{id}    clear one
    DELETE  /$faults         clear all

Every request needs the Manage right on its namespace, and nothing of it is read before that is
proven.  A namespace sees and makes its own faults only; what all of them share (stores, brokers) is
for the first one.  A request is understood as a whole or refused with a sentence; nothing changes
then.
"""

import json
from dataclasses import replace
from http import HTTPStatus
from typing import Final, NoReturn

from twinbus.errors import ArgumentInvalid, EntityNotFound, ServiceError, Unauthorized
from twinbus.gateway.faults.acting import ActingFaults
from twinbus.gateway.faults.faults import Fault, Wanted
from twinbus.gateway.faults.kinds import KINDS
from twinbus.gateway.namespaces.namespace import Namespace
from twinbus.server.http.access import HttpAccess
from twinbus.server.http.exchange import Request, Response, json_response
from twinbus.server.http.operations.operator_requests import OperatorRequests, not_allowed

FAULTS: Final = "$faults"
BODY_BYTES_MAX: Final = 4_096
PARTITIONS_MAX: Final = 16

_ALLOWED: Final = {1: "GET, HEAD, POST, DELETE", 2: "DELETE"}
_KEYS: Final = (
    "kind",
    "namespace",
    "entity",
    "partition",
    "store",
    "broker",
    "duration_s",
    "probability",
    "delay_ms",
)


def is_about_faults(segments: list[str]) -> bool:
    return segments[0].lower() == FAULTS


class FaultRouter(OperatorRequests):
    """Answers everything about faults."""

    def __init__(self, access: HttpAccess, faults: ActingFaults, first: Namespace) -> None:
        super().__init__(access)
        self._faults = faults
        self._first = first  # the namespace that may hurt what all of them share

    async def answer_to(self, namespace: Namespace, request: Request) -> Response:
        segments = request.segments()
        if len(segments) > 2:
            raise EntityNotFound("There is nothing here; faults are at /$faults and /$faults/ID.")
        if request.method == "DELETE":
            for fault in self._meant(namespace, segments[1:]):
                self._faults.clear(fault)
            return Response(204, b"")
        if len(segments) == 1 and request.method == "POST":
            wanted = self._scoped(read_wanted(request.body), namespace)
            return json_response(201, fault_document(self._faults, self._faults.add(wanted)))
        if len(segments) == 1 and request.method in ("GET", "HEAD"):
            found = [fault_document(self._faults, fault) for fault in self._meant(namespace, [])]
            return json_response(200, {"faults": found})
        return not_allowed(_ALLOWED[len(segments)])

    def refusal(self, error: ServiceError) -> Response:
        response = super().refusal(error)
        if response.status == HTTPStatus.UNAUTHORIZED:
            response.headers = (("WWW-Authenticate", "SharedAccessSignature"),)
        return response

    def _meant(self, namespace: Namespace, ids: list[str]) -> list[Fault]:
        """The faults of this namespace: the one with this id, or all."""
        faults = self._faults.faults
        found = [faults.get(fault_id) for fault_id in ids] if ids else faults.all()
        meant = [fault for fault in found if owns(namespace, self._first, fault)]
        if ids and not meant:
            raise EntityNotFound(f"No fault {ids[0][:64]} is in force.")
        return meant

    def _scoped(self, wanted: Wanted, namespace: Namespace) -> Wanted:
        """Who names no namespace means his own."""
        kind = KINDS.get(wanted.kind)
        if kind is not None and wanted.namespace is None and not kind.reaches_further:
            wanted = replace(wanted, namespace=namespace.name)
        is_own = wanted.namespace is not None and wanted.namespace.lower() == namespace.name.lower()
        if kind is not None and not is_own and namespace is not self._first:
            raise Unauthorized(
                "Faults on stores, brokers and other namespaces need a key of the first namespace."
            )
        return wanted


def owns(namespace: Namespace, first: Namespace, fault: Fault) -> bool:
    """Does a namespace see this fault?  The first one sees all of them."""
    return namespace is first or fault.namespace == namespace.name.lower()


def fault_document(faults: ActingFaults, fault: Fault) -> dict[str, object]:
    """A fault in force, as everybody is shown it."""
    remaining_ms = faults.remaining_ms(fault)
    document: dict[str, object] = {"id": fault.fault_id, "kind": fault.kind.name}
    for key in ("namespace", "entity", "store", "broker"):
        if getattr(fault, key) is not None:
            document[key] = getattr(fault, key)
    if fault.partitions:
        document["partition"] = sorted(fault.partitions)
    if fault.kind.is_likely:
        document["probability"] = fault.probability
    if fault.kind.has_delay:
        document["delay_ms"] = fault.delay_ms
    document["remaining_s"] = None if remaining_ms is None else remaining_ms / 1_000
    document["acted"] = faults.acted(fault)
    return document


def read_wanted(body: bytes) -> Wanted:
    """The body of a request, every value of the right type; what it means is not looked at."""
    members = _members(body)
    for key in members:
        if key not in _KEYS:
            known = ", ".join(_KEYS)
            raise ArgumentInvalid(f"A fault has no '{key[:64]}'; it has {known}.")
    kind = _text(members, "kind")
    if kind is None:
        raise ArgumentInvalid("A fault needs a kind.")
    duration_s = _number(members, "duration_s")
    return Wanted(
        kind,
        _text(members, "namespace"),
        _text(members, "entity"),
        _partitions(members.get("partition")),
        _whole(members, "store"),
        _whole(members, "broker"),
        # Numbers that no duration can be are refused by the registry; here they only must not trip.
        None if duration_s is None else int(max(-1.0, min(duration_s, 1e12)) * 1_000),
        _number(members, "probability"),
        _whole(members, "delay_ms"),
    )


def _members(body: bytes) -> dict[str, object]:
    if len(body) > BODY_BYTES_MAX:
        raise ArgumentInvalid(f"A fault has at most {BODY_BYTES_MAX} bytes.")
    try:
        found = json.loads(body, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ArgumentInvalid("The body is not JSON.") from None
    if not isinstance(found, dict):
        raise ArgumentInvalid('A fault is a JSON object, as {"kind": "throttle"}.')
    return found


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ArgumentInvalid("A key appears twice.")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ArgumentInvalid(f"{name} is not a number.")


def _text(members: dict[str, object], key: str) -> str | None:
    value = members.get(key)
    if value is not None and not isinstance(value, str):
        raise ArgumentInvalid(f"{key} must be text.")
    return value


def _whole(members: dict[str, object], key: str) -> int | None:
    value = members.get(key)
    if value is not None and not _is_whole(value):
        raise ArgumentInvalid(f"{key} must be a whole number.")
    assert value is None or isinstance(value, int)
    return value


def _number(members: dict[str, object], key: str) -> float | None:
    value = members.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentInvalid(f"{key} must be a number.")
    # A whole number may be larger than any float.
    return max(-1e300, min(value, 1e300)) + 0.0


def _partitions(value: object) -> tuple[int, ...]:
    """One number, or a list of some."""
    if value is None:
        return ()
    several = value if isinstance(value, list) else [value]
    if not 1 <= len(several) <= PARTITIONS_MAX or not all(map(_is_whole, several)):
        raise ArgumentInvalid("partition must be a whole number, or a list of 1 to 16 of them.")
    return tuple(several)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
