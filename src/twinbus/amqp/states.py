"""The state machines of AMQP 1.0, as tables.  Nothing here reads or writes a byte.

Theory of operation
-------------------
The specification (parts 2.4.6, 2.5.5, 2.6.3) draws one large diagram a machine, with states such
as OPEN_PIPE and CLOSE_SENT.  They all come from one fact: two peers talk at the same time, and each
moves through the *same few steps*.  So, as h11 does, we keep two small states instead of a large
one:

* our half: what we have sent;
* the peer's half: what the peer has sent.

Both halves move by the same table.  OPEN_SENT is (ours OPENED, the peer's AWAIT_OPEN), and so on.

What the peer may send depends on its own half only: a frame that is not in the table for its state
is answered as `REFUSALS` says.  What we do with a legal frame depends on our half: once we have
sent `close`, `end` or `detach`, everything but the matching answer is dropped, because the peer may
have sent it before it heard from us.

The four machines:

    connection   one: header, open, frames, close
    sasl         one, before the connection's header; a table for each role
    session      one a channel: begin, frames, end; an ended channel may begin again, and what
                 arrives on it until then is dropped (pyamqp detaches its links after `end`)
    link         one a handle: attach, frames, detach; a table for each direction, as only the
                 sending side may transfer
"""

from typing import Final

SERVER: Final = 0  # roles of a connection's side
CLIENT: Final = 1

# --- what can be sent: protocol headers, then performatives by their descriptor ----------------
HEADER: Final = 0x00
EMPTY: Final = 0x01  # a frame without a body
SASL_HEADER: Final = 0x03
OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18
SASL_MECHANISMS: Final = 0x40
SASL_INIT: Final = 0x41
SASL_CHALLENGE: Final = 0x42
SASL_RESPONSE: Final = 0x43
SASL_OUTCOME: Final = 0x44

INPUT_NAMES: Final = {
    HEADER: "AMQP header",
    EMPTY: "empty frame",
    SASL_HEADER: "SASL header",
    OPEN: "open",
    BEGIN: "begin",
    ATTACH: "attach",
    FLOW: "flow",
    TRANSFER: "transfer",
    DISPOSITION: "disposition",
    DETACH: "detach",
    END: "end",
    CLOSE: "close",
    SASL_MECHANISMS: "sasl-mechanisms",
    SASL_INIT: "sasl-init",
    SASL_CHALLENGE: "sasl-challenge",
    SASL_RESPONSE: "sasl-response",
    SASL_OUTCOME: "sasl-outcome",
}

# --- states -----------------------------------------------------------------------------------
AWAIT_HEADER: Final = 1
AWAIT_OPEN: Final = 2
OPENED: Final = 3
CLOSED: Final = 4

UNMAPPED: Final = 11
MAPPED: Final = 12
ENDED: Final = 13

DETACHED: Final = 21
ATTACHED: Final = 22

SASL_AWAIT_HEADER: Final = 31
SASL_AWAIT_MECHANISMS: Final = 32
SASL_AWAIT_INIT: Final = 33
SASL_AWAIT_OUTCOME: Final = 34
SASL_DONE: Final = 35

STATE_NAMES: Final = {
    AWAIT_HEADER: "before the header",
    AWAIT_OPEN: "before open",
    OPENED: "opened",
    CLOSED: "closed",
    UNMAPPED: "without a session",
    MAPPED: "in a session",
    ENDED: "after the session's end",
    DETACHED: "detached",
    ATTACHED: "attached",
    SASL_AWAIT_HEADER: "before the SASL header",
    SASL_AWAIT_MECHANISMS: "before sasl-mechanisms",
    SASL_AWAIT_INIT: "before sasl-init",
    SASL_AWAIT_OUTCOME: "before sasl-outcome",
    SASL_DONE: "after SASL",
}

ILLEGAL: Final = -1  # what `advance` answers when the table has no entry

# --- the tables: state → input → next state -----------------------------------------------------
Table = dict[int, dict[int, int]]

CONNECTION: Final[Table] = {
    AWAIT_HEADER: {HEADER: AWAIT_OPEN},
    AWAIT_OPEN: {OPEN: OPENED},
    OPENED: {
        EMPTY: OPENED,
        BEGIN: OPENED,
        ATTACH: OPENED,
        FLOW: OPENED,
        TRANSFER: OPENED,
        DISPOSITION: OPENED,
        DETACH: OPENED,
        END: OPENED,
        CLOSE: CLOSED,
    },
    CLOSED: {},
}

SESSION: Final[Table] = {
    UNMAPPED: {BEGIN: MAPPED},
    MAPPED: {
        ATTACH: MAPPED,
        FLOW: MAPPED,
        TRANSFER: MAPPED,
        DISPOSITION: MAPPED,
        DETACH: MAPPED,
        END: ENDED,
    },
    ENDED: {
        BEGIN: MAPPED,
        ATTACH: ENDED,
        FLOW: ENDED,
        TRANSFER: ENDED,
        DISPOSITION: ENDED,
        DETACH: ENDED,
        END: ENDED,
    },
}

# The peer's half of a link on which the peer sends ...
LINK_SENDER: Final[Table] = {
    DETACHED: {ATTACH: ATTACHED},
    ATTACHED: {FLOW: ATTACHED, TRANSFER: ATTACHED, DETACH: DETACHED},
}
# ... and of one on which it receives.
LINK_RECEIVER: Final[Table] = {
    DETACHED: {ATTACH: ATTACHED},
    ATTACHED: {FLOW: ATTACHED, DETACH: DETACHED},
}

# Our mechanisms (ANONYMOUS, PLAIN, EXTERNAL, MSSBCBS) are all done in one step, so a challenge and
# a response have no place in the tables.
SASL_CLIENT: Final[Table] = {
    SASL_AWAIT_HEADER: {SASL_HEADER: SASL_AWAIT_INIT},
    SASL_AWAIT_INIT: {SASL_INIT: SASL_DONE},
    SASL_DONE: {},
}
SASL_SERVER: Final[Table] = {
    SASL_AWAIT_HEADER: {SASL_HEADER: SASL_AWAIT_MECHANISMS},
    SASL_AWAIT_MECHANISMS: {SASL_MECHANISMS: SASL_AWAIT_OUTCOME},
    SASL_AWAIT_OUTCOME: {SASL_OUTCOME: SASL_DONE},
    SASL_DONE: {},
}

# --- what an illegal input is answered with -----------------------------------------------------
# State → condition.  Connection, session, SASL: the connection is closed.  Link: the session is
# ended, except for a transfer by the receiver of an attached link, which only detaches that link.
ILLEGAL_STATE: Final = "amqp:illegal-state"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"

REFUSALS: Final = {
    AWAIT_HEADER: FRAMING_ERROR,
    AWAIT_OPEN: ILLEGAL_STATE,
    OPENED: ILLEGAL_STATE,
    UNMAPPED: ILLEGAL_STATE,
    MAPPED: ILLEGAL_STATE,
    DETACHED: UNATTACHED_HANDLE,
    ATTACHED: HANDLE_IN_USE,
    SASL_AWAIT_HEADER: FRAMING_ERROR,
    SASL_AWAIT_MECHANISMS: ILLEGAL_STATE,
    SASL_AWAIT_INIT: ILLEGAL_STATE,
    SASL_AWAIT_OUTCOME: ILLEGAL_STATE,
    SASL_DONE: ILLEGAL_STATE,
}


def advance(table: Table, state: int, received: int) -> int:
    """The next state, or ILLEGAL when `received` has no place in `state`."""
    return table[state].get(received, ILLEGAL)


def refusal(state: int, received: int) -> str:
    """One sentence for the peer about an input that the table does not allow."""
    what = INPUT_NAMES.get(received, f"performative {received:#04x}")
    return f"{what} is not allowed {STATE_NAMES[state]}"
