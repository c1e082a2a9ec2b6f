"""The blocking shell of a pair: performs with threads what the pure modules beside it decide.

`twinbus.pairing` exports it.  The files have the names of those in `aio`, which do the same on a
loop.  Only here are `_opening.py`, because the SDK's blocking calls cannot be cancelled, and
`_posting.py`, which `aio` runs in a thread.
"""

from twinbus.pairing.blocking._client import PairedServiceBusClient, pair_namespace
from twinbus.pairing.blocking._sender import PairedSender

__all__ = ["PairedSender", "PairedServiceBusClient", "pair_namespace"]
