"""Clients that prove who they are in the TLS handshake (mutual TLS), for SASL EXTERNAL.

TLS has checked that the certificate is valid and that the configured authority signed it.  A table
from the configuration maps its common name to rights; a name that is not in the table has none.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final

from twinbus.errors import Unauthorized
from twinbus.gateway.access.shared_access import MANAGE, RIGHTS, Grant

COMMON_NAME: Final = "commonName"


class ClientCertificates:
    """Whose certificates give which rights on the whole namespace."""

    def __init__(self, rights: Mapping[str, frozenset[str]]) -> None:
        self._rights = {
            name: RIGHTS if MANAGE in given else given for name, given in rights.items()
        }

    def grant(self, certificate: object) -> Grant:
        """What the client's certificate gives; `certificate` is asyncio's `peercert`."""
        if not isinstance(certificate, dict) or not certificate:
            raise Unauthorized("EXTERNAL needs a client certificate.")
        names = [
            value
            for group in certificate.get("subject", ())
            for key, value in group
            if key == COMMON_NAME
        ]
        # More than one name would leave open whose rights are meant.
        rights = self._rights.get(names[0]) if len(names) == 1 else None
        if rights is None:
            raise Unauthorized("The subject of the client certificate has no rights here.")
        return Grant(rights, "", int(ssl.cert_time_to_seconds(certificate["notAfter"])))


def asked_host(transport: asyncio.BaseTransport) -> str | None:
    """The host name that a client asked for when it began to speak TLS; None without one."""
    return getattr(transport.get_extra_info("ssl_object"), "asked_host", None)
