"""Why two tasks have no TLS connection, in a sentence that a user can act on.

gRPC's own reasons are error codes of its library, or only that the connection was closed: in TLS
1.3 a client has finished before the server looks at its certificate. So a failed connection is
repeated with Python's TLS, which tells the fault of the certificate, and on which side it is.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfdist.config.tls import Tls
from tfdist.control import interfaces
from tfdist.control.connections import peer_of

if TYPE_CHECKING:
    from tfdist.control.tls.credentials import Credentials

# Seconds for each of the connections.
_TIMEOUT = 2.0
_ATTEMPTS = 2
# Addresses of a name that are tried: each may be silent.
_MAX_ADDRESSES = 4
# gRPC's words for a connection that was made, and then ended in the handshake or at once. Others,
# as for a connection that is lost in use, come from hosts that may not answer any more.
_SIGNS = re.compile(
    "failed to connect.*(handshake|verification check failed|socket closed|reset by peer)",
    re.IGNORECASE | re.DOTALL,
)
# Of a host with several addresses gRPC tells the error of one alone, which may be another than the
# task's: "localhost" is also ::1, where often no task listens.
_ONE_OF_ALL = re.compile(r"failed to connect to all addresses.*\b(ipv[46]:\S+):\s", re.IGNORECASE)
# X509_V_ERR_* of OpenSSL.
_DATES, _NAMES = (9, 10), (62, 64)
_SAME = "expected the same TFDIST_TLS variables on every task"


def problem(address: str, tls: Tls | None, reason: str) -> str | None:
    """Returns why TLS failed with the task at an address; None if it did not, or none is known.

    Args:
      address: the other task's "host:port".
      tls: the origin of this task's certificate, or None.
      reason: gRPC's.
    """
    told = None
    if _SIGNS.search(reason) is None:
        one = _ONE_OF_ALL.search(reason)
        if one is None:
            return None
        told = peer_of(one.group(1))[0]
    host, port = interfaces.host_of(address), int(address.rpartition(":")[2])
    found = [numeric for numeric in interfaces.resolve(host) if numeric != told]
    targets = ((numeric, port) for numeric in found[:_MAX_ADDRESSES])
    problems = (_problem_at(target, host, tls) for target in targets)
    return next((problem for problem in problems if problem is not None), None)


def _problem_at(target: tuple[str, int], host: str, tls: Tls | None) -> str | None:
    """Returns why TLS failed at one address of the other task's host; as `problem`."""
    try:
        if tls is None:
            return _other_encrypts(target)
        from tfdist.control.tls.credentials import credentials_of  # needs an extra

        return _problem(target, host, tls, credentials_of(tls))
    except OSError:  # it has gone meanwhile, or is silent
        return None


def _other_encrypts(target: tuple[str, int]) -> str | None:
    """Returns that the other task alone encrypts, if it does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLError), _connected(target, context):
        return f"the other task encrypts its connections (TFDIST_TLS), this one does not; {_SAME}"
    return None


def _problem(target: tuple[str, int], host: str, tls: Tls, credentials: Credentials) -> str | None:
    context = credentials.context(server=False)
    # With the name it expects, although it verifies the address: as gRPC does.
    name = credentials.fixed_name or host
    try:
        # gRPC closes the connection of a certificate that it refuses, but so does a task that ends.
        for _ in range(_ATTEMPTS):
            with _connected(target, context, name) as connection:
                # A server speaks first, or tells why it refuses this task's certificate.
                if connection.recv(1):
                    return None
        return _refusal_of_own(tls, credentials, "")
    except ssl.SSLCertVerificationError as error:
        return _problem_with_other(target, tls, name, error)
    except ssl.SSLError as error:
        reason = error.reason or ""
        if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"):
            return (
                f"this task encrypts its connections (TFDIST_TLS), the other one does not; {_SAME}"
            )
        if "ALERT" in reason:
            why = reason.partition("ALERT_")[2].lower().replace("_", " ")
            return _refusal_of_own(tls, credentials, f" ({why})")
        return None


def _refusal_of_own(tls: Tls, credentials: Credentials, why: str) -> str:
    from tfdist.control.tls.certificates import expired, issuer

    certificate = credentials.material.certificate
    ended = expired(certificate)
    if ended:
        return f"this task's certificate {tls.certificate} (TFDIST_TLS_CERT) {ended}"
    if tls.secret is not None:
        return (
            f"the other task refuses this task's certificate{why}, which its secret has made; "
            "expected the same TFDIST_SECRET (or content of TFDIST_SECRET_FILE), and TFDIST_TLS, "
            "on every task"
        )
    return (
        f"the other task refuses this task's certificate{why}: {tls.certificate}, issued by "
        f"{issuer(certificate)}; expected one of an authority in its TFDIST_TLS_CA"
    )


def _problem_with_other(
    target: tuple[str, int], tls: Tls, name: str, error: ssl.SSLCertVerificationError
) -> str | None:
    from tfdist.control.tls.certificates import expiry, issuer_of, load_der, names

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with _connected(target, context) as connection:
        shown = connection.getpeercert(binary_form=True)
    certificate = None if shown is None else load_der(shown)
    if certificate is None:
        return f"the certificate of the other task cannot be verified: {error.verify_message}"
    if error.verify_code in _DATES:
        # If it is not the task's own, it is the authority's.
        ended = expiry(certificate) or f"cannot be verified: {error.verify_message}"
        return f"the certificate of the other task {ended}"
    if error.verify_code in _NAMES:
        return (
            f"the certificate of the other task is for another name: expected {name} in its "
            f"subjectAltName, received {names(certificate)}"
        )
    if tls.secret is not None:
        return (
            "the certificate of the other task was not made with this task's secret; expected the "
            "same TFDIST_SECRET (or content of TFDIST_SECRET_FILE), and TFDIST_TLS, on every task"
        )
    return (
        f"the certificate of the other task is of another authority: issued by "
        f"{issuer_of(certificate)}, expected one in {tls.authority} (TFDIST_TLS_CA; "
        f"{error.verify_message})"
    )


@contextlib.contextmanager
def _connected(
    target: tuple[str, int], context: ssl.SSLContext, name: str | None = None
) -> Iterator[ssl.SSLSocket]:
    # gRPC's servers want no other protocol.
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(target, timeout=_TIMEOUT) as plain,
        context.wrap_socket(plain, server_hostname=name) as encrypted,
    ):
        yield encrypted
