"""What SASL frames carry (OASIS AMQP 1.0 part 5.3.3)."""

from twinbus.amqp.composites import Performative
from twinbus.amqp.decoding import decode_error
from twinbus.amqp.fields import (
    Fields,
    composite,
    put_binary,
    put_string,
    put_symbol,
    put_symbols,
    put_ubyte,
)


class SaslMechanisms(Performative):
    """What a server offers."""

    __slots__ = ("mechanisms",)

    def __init__(self, mechanisms: list[str]) -> None:
        self.mechanisms = mechanisms

    def encode(self) -> bytes:
        return composite(0x40, [put_symbols(self.mechanisms)])


class SaslInit(Performative):
    """What a client chooses."""

    __slots__ = ("hostname", "initial_response", "mechanism")

    def __init__(
        self, mechanism: str, initial_response: bytes | None = None, hostname: str | None = None
    ) -> None:
        self.mechanism = mechanism
        self.initial_response = initial_response
        self.hostname = hostname

    def encode(self) -> bytes:
        return composite(
            0x41,
            [
                put_symbol(self.mechanism),
                put_binary(self.initial_response),
                put_string(self.hostname),
            ],
        )


class SaslChallenge(Performative):
    """A server's question."""

    __slots__ = ("challenge",)

    def __init__(self, challenge: bytes) -> None:
        self.challenge = challenge

    def encode(self) -> bytes:
        return composite(0x42, [put_binary(self.challenge)])


class SaslResponse(Performative):
    """A client's answer."""

    __slots__ = ("response",)

    def __init__(self, response: bytes) -> None:
        self.response = response

    def encode(self) -> bytes:
        return composite(0x43, [put_binary(self.response)])


class SaslOutcome(Performative):
    """How it ended: 0 ok, 1 refused, 2 to 4 failures of the server."""

    __slots__ = ("additional_data", "code")

    def __init__(self, code: int, additional_data: bytes | None = None) -> None:
        self.code = code
        self.additional_data = additional_data

    def encode(self) -> bytes:
        return composite(0x44, [put_ubyte(self.code), put_binary(self.additional_data)])


def read_sasl(code: int, values: object) -> Performative:
    """A SASL performative from its code and decoded list."""
    if code == 0x40:
        fields = Fields("sasl-mechanisms", values, 1)
        if fields.value(0) is None:
            raise fields.missing(0)
        return SaslMechanisms(fields.texts(0))
    if code == 0x41:
        fields = Fields("sasl-init", values, 3)
        return SaslInit(fields.text(0), fields.optional_binary(1), fields.optional_text(2))
    if code == 0x42:
        return SaslChallenge(Fields("sasl-challenge", values, 1).binary(0))
    if code == 0x43:
        return SaslResponse(Fields("sasl-response", values, 1).binary(0))
    if code == 0x44:
        fields = Fields("sasl-outcome", values, 2)
        return SaslOutcome(fields.number(0, -1, 255), fields.optional_binary(1))
    raise decode_error("unknown performative")
