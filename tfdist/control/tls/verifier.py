"""Verifies tasks for a client that shows no certificate, such as a reader of states."""

from __future__ import annotations

import ssl

from tfdist.config.tls import FIXED_NAME, Tls
from tfdist.control.tls.authority import certificate_of
from tfdist.control.tls.credentials import read_authority, trust
from tfdist.errors import ClusterConfigError


class Verifier:
    """The authority of a job, without a certificate of this process. Thread-safe.

    Args:
      tls: its origin, of which the certificate and its key are not read.

    Attributes:
      fixed_name: the name that all tasks' certificates have; None: a task's has its host's.

    Raises:
      ClusterConfigError: the authority's file cannot be read, or has no certificate.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self.fixed_name = None if tls.secret is None else FIXED_NAME
        made = read_authority(tls.authority) if tls.secret is None else certificate_of(tls.secret)
        self._context = _client_context(made)

    def context(self) -> ssl.SSLContext:
        """Returns a client's context of TLS 1.3 alone, which trusts the authority as it is now."""
        if self._tls.secret is None:
            try:
                self._context = _client_context(read_authority(self._tls.authority))
            except ClusterConfigError:
                # The file is being replaced: the former one counts until then.
                return self._context
        return self._context


def _client_context(authority: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        trust(context, authority)
    except ValueError as error:
        raise ClusterConfigError(str(error)) from None
    return context
