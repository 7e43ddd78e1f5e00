"""Whether this task's certificate has the name by which the other tasks call it.

They would refuse it, each when it calls: here the task that has the certificate finds out itself.
"""

from __future__ import annotations

import contextlib
import ssl

from tfdist.config.tls import CERTIFICATE, Tls
from tfdist.errors import ClusterConfigError

# X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL.
_NAMES = (62, 64)


def check_own_name(who: str, tls: Tls, host: str) -> None:
    """Refuses a certificate for other hosts; a secret makes certificates for all tasks.

    Args:
      who: this task, for the message.
      tls: the origin of its certificate.
      host: the name or address at which other tasks call this one, without brackets.

    Raises:
      ClusterConfigError: the certificate has another name, or its files cannot be used.
    """
    if tls.secret is not None:
        return
    from tfdist.control.tls.certificates import names_of_first  # needs an extra
    from tfdist.control.tls.credentials import credentials_of

    credentials = credentials_of(tls)
    client, server = credentials.context(server=False), credentials.context(server=True)
    if _has_name(client, server, host):
        return
    raise ClusterConfigError(
        f"{who}: {CERTIFICATE}: expected a certificate with {host} in its subjectAltName, since "
        f"other tasks call this one there, received {tls.certificate} with "
        f"{names_of_first(credentials.material.certificate)}"
    )


def _has_name(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> bool:
    """Whether a client of this host would accept the server's name: in a handshake in memory.

    So the rules for wildcards and addresses are OpenSSL's, as they are between tasks. A fault of
    another kind is none here.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(to_client, to_server, server_hostname=host)
    called = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (caller, called, caller):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_code not in _NAMES
    return True
