"""What a tier of the service allows an entity to be: the profile of a namespace, applied.

The texts are Service Bus's own where it has one, so that a test of an error message holds here too.
"""

from dataclasses import replace
from typing import Final, TypeVar

from twinbus.entities.descriptions import QueueDescription
from twinbus.entities.message import NEVER_MS
from twinbus.errors import ArgumentInvalid, ArgumentOutOfRange
from twinbus.limits import Limits

D = TypeVar("D", bound=QueueDescription)

_KILOBYTE: Final = 1_024


def check_topics(limits: Limits, namespace: str) -> None:
    """Refuse a topic where the tier has none."""
    if not limits.has_topics:
        raise ArgumentInvalid(
            f"Cannot operate on type Topic because the namespace '{namespace}' is using "
            f"'{limits.tier}' tier."
        )


def check_partitioning(limits: Limits, namespace: str, description: QueueDescription) -> None:
    """Refuse a new partitioned entity where the tier has none; one that is there may be changed."""
    if description.enable_partitioning and not limits.has_new_partitioned_entities:
        raise _lacks(limits, namespace, description, "EnablePartitioning")


def fit_description(limits: Limits, namespace: str, description: D) -> D:
    """The description as the tier has it, or why it cannot be had there.

    What is left unset becomes the most that the tier allows; what is set beyond it is refused.
    """
    _check_features(limits, namespace, description)
    _check_size(limits, description)
    time_to_live_ms = description.default_time_to_live_ms
    ceiling_ms = limits.time_to_live_ms_max
    if ceiling_ms and time_to_live_ms > ceiling_ms:
        if time_to_live_ms != NEVER_MS:
            raise ArgumentOutOfRange(
                f"default_time_to_live_ms is {time_to_live_ms}; the "
                f"'{limits.tier}' tier allows {ceiling_ms}."
            )
        time_to_live_ms = ceiling_ms
    return replace(
        description,
        default_time_to_live_ms=time_to_live_ms,
        max_message_size_kilobytes=min(
            description.max_message_size_kilobytes, limits.message_size_bytes_max // _KILOBYTE
        ),
    )


def _check_size(limits: Limits, description: QueueDescription) -> None:
    """Refuse a size that the tier does not have.  That of a partitioned entity is one partition's,
    a subscription's is its topic's."""
    if "max_size_megabytes" in description.FOREIGN:
        return
    size = description.max_size_megabytes
    is_partitioned = description.enable_partitioning
    sizes = limits.partition_sizes_megabytes if is_partitioned else limits.sizes_megabytes
    if sizes and size not in sizes:
        raise ArgumentOutOfRange(
            f"max_size_megabytes is {size}{' for each partition' if is_partitioned else ''}; the "
            f"'{limits.tier}' tier allows {', '.join(map(str, sizes))}."
        )


def _check_features(limits: Limits, namespace: str, description: QueueDescription) -> None:
    forwards = description.forward_to or description.forward_dead_lettered_messages_to
    wanted = (
        ("RequiresSession", description.requires_session, limits.has_sessions),
        (
            "RequiresDuplicateDetection",
            description.requires_duplicate_detection,
            limits.has_duplicate_detection,
        ),
        ("ForwardTo", forwards is not None, limits.has_forwarding),
        (
            "AutoDeleteOnIdle",
            description.auto_delete_on_idle_ms != NEVER_MS,
            limits.has_auto_delete,
        ),
    )
    for setting, is_wanted, is_there in wanted:
        if is_wanted and not is_there:
            raise _lacks(limits, namespace, description, setting)


def _lacks(
    limits: Limits, namespace: str, description: QueueDescription, setting: str
) -> ArgumentInvalid:
    return ArgumentInvalid(
        f"The property '{setting}' can't be set when creating a {description.KIND.title()} because "
        f"the namespace '{namespace}' is using the '{limits.tier}' Tier."
    )
