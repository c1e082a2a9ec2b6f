"""Every error of the SDK has a verdict under both policies."""

import inspect

import pytest
from azure.core import exceptions as core
from azure.servicebus import exceptions as sdk

from twinbus.pairing.classification import (
    Policy,
    Verdict,
    is_broken_by,
    is_wrapped_fault,
    table,
    verdict_of,
)
from twinbus.pairing.errors import (
    BacklogMessageSizeExceededError,
    BacklogUnavailableError,
    PairFaultedError,
)

pytestmark = pytest.mark.proves("P-7", "P-8")

RAISE, COUNT, BUSY = Verdict.RAISE, Verdict.COUNT, Verdict.BUSY

EXPECTED: list[tuple[BaseException, Verdict, Verdict]] = [
    (sdk.OperationTimeoutError(), COUNT, COUNT),
    (sdk.ServiceBusConnectionError(), COUNT, COUNT),
    (sdk.ServiceBusCommunicationError(), COUNT, COUNT),
    (sdk.ServiceBusQuotaExceededError(), COUNT, RAISE),
    (sdk.MessagingEntityDisabledError(), COUNT, RAISE),
    (sdk.ServiceBusError("internal"), COUNT, COUNT),
    (sdk.ServiceBusServerBusyError(), BUSY, COUNT),
    (sdk.ServiceBusAuthenticationError(), RAISE, RAISE),
    (sdk.ServiceBusAuthorizationError(), RAISE, RAISE),
    (sdk.MessagingEntityNotFoundError(), RAISE, RAISE),
    (sdk.MessagingEntityAlreadyExistsError(), RAISE, RAISE),
    (sdk.MessageSizeExceededError(), RAISE, RAISE),  # a ServiceBusError and a ValueError
    (sdk.MessageAlreadySettled(), RAISE, RAISE),  # a ValueError only
    (sdk.MessageLockLostError(), RAISE, RAISE),
    (sdk.MessageNotFoundError(), RAISE, RAISE),
    (sdk.SessionLockLostError(), RAISE, RAISE),
    (sdk.SessionCannotBeLockedError(), RAISE, RAISE),
    (sdk.AutoLockRenewFailed("gone"), RAISE, RAISE),
    (sdk.AutoLockRenewTimeout("gone"), RAISE, RAISE),
    (BacklogUnavailableError("none"), RAISE, RAISE),
    (BacklogMessageSizeExceededError(1, 2, 1), RAISE, RAISE),
    (PairFaultedError("over"), RAISE, RAISE),
    (core.ServiceRequestError("no route"), COUNT, RAISE),
    (core.ServiceRequestTimeoutError("late"), COUNT, RAISE),
    (core.ServiceResponseError("cut off"), COUNT, RAISE),
    (core.ClientAuthenticationError("wrong secret"), RAISE, RAISE),
    (core.HttpResponseError("500"), RAISE, RAISE),
    (core.AzureError("other"), RAISE, RAISE),
    (OSError("unreachable"), COUNT, COUNT),
    (TimeoutError(), COUNT, COUNT),
    (ConnectionResetError(), COUNT, COUNT),
    (ValueError("bad"), RAISE, RAISE),
    (TypeError("bad"), RAISE, RAISE),
    (RuntimeError("bug"), RAISE, RAISE),
    (KeyboardInterrupt(), RAISE, RAISE),
]


@pytest.mark.parametrize(
    ("error", "documented", "legacy"), EXPECTED, ids=lambda each: type(each).__name__
)
def test_verdicts(error: BaseException, documented: Verdict, legacy: Verdict) -> None:
    assert verdict_of(error, "documented") is documented
    assert verdict_of(error, "legacy") is legacy


def classes_of_the_sdk() -> set[str]:
    return {
        name
        for name, each in vars(sdk).items()
        if inspect.isclass(each) and issubclass(each, Exception) and each.__module__ == sdk.__name__
    }


def test_no_class_of_the_sdk_is_missing() -> None:
    """A new version of the SDK may have new errors: each needs a decision, and a line here."""
    known = {name for name, _, _ in table()}
    assert classes_of_the_sdk() <= known
    assert classes_of_the_sdk() <= {type(error).__name__ for error, _, _ in EXPECTED}


def test_the_table_for_the_docs() -> None:
    rows = {name: verdicts for name, *verdicts in table()}
    assert rows["ServiceBusServerBusyError"] == ["busy", "count"]
    assert rows["ServiceBusAuthorizationError"] == ["raise", "raise"]
    assert rows["OSError"] == ["count", "count"]
    assert len(rows) == len(table())


@pytest.mark.parametrize("policy", ["documented", "legacy"])
@pytest.mark.parametrize(
    ("condition", "verdict"),
    [
        (b"amqp:not-allowed", RAISE),
        (b"amqp:not-implemented", RAISE),
        (b"amqp:precondition-failed", RAISE),
        (b"amqp:invalid-field", RAISE),
        (b"amqp:decode-error", RAISE),
        (b"com.microsoft:argument-error", RAISE),
        (b"com.microsoft:argument-out-of-range", RAISE),
        (b"amqp:internal-error", COUNT),
        (b"com.microsoft:operation-cancelled", COUNT),
    ],
)
def test_invalid_operations_have_no_class_of_their_own(
    condition: bytes, verdict: Verdict, policy: Policy
) -> None:
    assert verdict_of(sdk.ServiceBusError("no", condition=condition), policy) is verdict


def test_a_subclass_keeps_its_verdict_whatever_its_condition_is() -> None:
    error = sdk.ServiceBusConnectionError(condition=b"amqp:not-allowed")
    assert verdict_of(error, "documented") is COUNT


def test_what_the_sdk_wraps() -> None:
    """Its "Handler failed" hides a credential that refuses, a lost socket, or a bad message."""
    refused = sdk.ServiceBusError("failed", error=core.ClientAuthenticationError("wrong secret"))
    assert verdict_of(refused, "documented") is RAISE
    unreachable = sdk.ServiceBusError("failed", error=core.ServiceRequestError("no route"))
    assert verdict_of(unreachable, "documented") is COUNT
    cut = sdk.ServiceBusError("failed", error=ConnectionResetError())
    assert verdict_of(cut, "documented") is COUNT
    assert not is_wrapped_fault(cut)
    odd = sdk.ServiceBusError("failed", error=TypeError("no encoding"))
    assert verdict_of(odd, "documented") is COUNT
    assert is_wrapped_fault(odd)
    assert not is_wrapped_fault(TypeError("no encoding"))
    assert not is_wrapped_fault(sdk.ServiceBusError("nothing inside"))


class AuthenticationFailed(Exception):
    """As the SDK's own, which has a status if the server gave one."""

    def __init__(self, status_code: int | None) -> None:
        super().__init__(status_code)
        self.status_code = status_code


@pytest.mark.proves("P-8")
@pytest.mark.parametrize("policy", ["documented", "legacy"])
@pytest.mark.parametrize(
    ("cause", "verdict"),
    [
        (None, RAISE),
        (AuthenticationFailed(401), RAISE),
        (AuthenticationFailed(403), RAISE),
        (AuthenticationFailed(404), RAISE),
        (AuthenticationFailed(500), COUNT),
        (AuthenticationFailed(503), COUNT),
        (AuthenticationFailed(0), COUNT),
        (AuthenticationFailed(None), RAISE),
        (Exception("the name does not resolve"), COUNT),
    ],
    ids=repr,
)
def test_only_a_refused_credential_is_the_callers_to_mend(
    cause: Exception | None, verdict: Verdict, policy: Policy
) -> None:
    """P-8 is about these; an authentication that got no answer is an outage like any other."""
    assert verdict_of(sdk.ServiceBusAuthenticationError(error=cause), policy) is verdict


@pytest.mark.parametrize(
    ("error", "is_broken"),
    [
        (sdk.OperationTimeoutError(), True),
        (sdk.ServiceBusConnectionError(), True),
        (sdk.ServiceBusError("handler failed"), True),
        (KeyboardInterrupt(), True),
        (sdk.ServiceBusServerBusyError(), False),
        (sdk.MessageSizeExceededError(), False),
        (sdk.ServiceBusQuotaExceededError(), False),
        (sdk.MessagingEntityDisabledError(), False),
        (TypeError("not a message"), False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_which_errors_break_a_sender(error: BaseException, is_broken: bool) -> None:
    assert is_broken_by(error) is is_broken
