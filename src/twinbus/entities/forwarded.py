"""What becomes of a message that is forwarded, whoever carries it: a broker or a relay."""

from typing import Final

from twinbus.clock import Now
from twinbus.entities.descriptions import PREFIX_END
from twinbus.entities.facts import MAIN
from twinbus.entities.fields import MessageCodec
from twinbus.entities.message import NEVER_MS, Message, NewMessage, Overlay
from twinbus.entities.partitions import shown_name
from twinbus.errors import EntityNotFound, ServiceError
from twinbus.limits import DEAD_LETTER_TEXT_CHARS_MAX, FORWARD_HOPS_MAX

REASON_HOPS: Final = "MaxTransferHopCountExceeded"


def target_name(source: str, name: str) -> str:
    """The whole name of a target, which is in the namespace of its source."""
    namespace, colon, _ = source.rpartition(PREFIX_END)
    return f"{namespace}{colon}{name}"


def forwarded(source: str, subqueue: int, message: Message, body: bytes, now: Now) -> NewMessage:
    """The message as the target gets it, without its keys."""
    new = NewMessage(body)
    if message.expires_ms != NEVER_MS:
        since_ms = now.utc_ms if subqueue == MAIN else message.enqueued_ms
        new.time_to_live_ms = message.expires_ms - since_ms
    older = message.overlay or Overlay()
    new.overlay = Overlay(
        older.reason,
        older.description,
        older.source if subqueue == MAIN else shown_name(source),
        older.properties,
        older.hop_count + 1,
        older.enqueued_sequence_number or message.sequence_number,
    )
    return new


def read_keys(new: NewMessage, codec: MessageCodec) -> None:
    """Give a message its ids, for a target that has a use for them."""
    new.message_id, new.session_id, new.partition_key = codec.read_keys(new.body)


def too_many_hops(message: Message) -> Overlay | None:
    """Why it may not be forwarded once more, if it has been often enough."""
    if message.overlay is None or message.overlay.hop_count < FORWARD_HOPS_MAX:
        return None
    text = f"The message has been forwarded {FORWARD_HOPS_MAX} times, the most it may."
    return Overlay(REASON_HOPS, text)


def target_not_found(name: str) -> EntityNotFound:
    return EntityNotFound(f"The forwarding target '{name[:64]}' could not be found.")


def refusal(error: ServiceError) -> Overlay:
    """Why a target did not take a message, for the transfer dead-letter queue."""
    return Overlay(type(error).__name__, str(error)[:DEAD_LETTER_TEXT_CHARS_MAX])


# --- what the broker does with sends and receivers of a relay ---------------------------------
