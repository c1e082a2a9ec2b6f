"""Why the syphons dead-letter a message whose destination does not take it.

`rules.py` has the reasons that lie in the message itself.  Operators filter by these texts.
"""

from typing import Final

DESTINATION_NOT_FOUND: Final = "DestinationNotFound"
TOO_LARGE: Final = "MessageSizeExceeded"
REFUSED: Final = "DestinationRefused"

DESCRIPTION_LENGTH_MAX: Final = 1024
