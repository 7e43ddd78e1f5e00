"""TLS of the data connections: collectives and parameter servers.

From `configure` on, every data connection that this process opens or accepts is TLS 1.3, and both
sides prove who they are by a certificate. Connections between processes of one machine and user,
which the kernel vouches for, stay as they are.
"""

import ctypes

import tensorflow as tf

from tfdist.errors import CertificateError, TlsLibraryError
from tfdist.ops.library import CFunctions

_functions = CFunctions(
    "tfdist_tls_",
    checked={
        "configure": [*(ctypes.c_char_p, ctypes.c_size_t) * 3, ctypes.c_char_p],
    },
    plain={"disable": []},
)


def configure(certificate: bytes, key: bytes, authority: bytes, fixed_name: str | None) -> None:
    """Encrypts the data connections that this process opens or accepts from now on.

    Earlier connections stay as they are, so a later call with renewed files disturbs no step.

    Args:
      certificate: this process's certificate in PEM, and behind it the certificates between it
        and the authority, if there are any.
      key: its private key in PEM, without a password.
      authority: the certificates in PEM of which one must have issued each peer's.
      fixed_name: the DNS name or address that the certificate of each peer must have. None: the
        certificate of a peer that is dialled must have the host of its address, and a peer that
        dials may have any name.

    Raises:
      CertificateError: the files do not fit each other, are no PEM, or the certificate is not
        valid now.
      TlsLibraryError: there is no OpenSSL 3 (`libssl.so.3`).
    """
    name = None if fixed_name is None else fixed_name.encode()
    files = (argument for pem in (certificate, key, authority) for argument in (pem, len(pem)))
    try:
        _functions.configure(*files, name)
    except tf.errors.InvalidArgumentError as error:
        raise CertificateError(error.message) from None
    except tf.errors.OpError as error:
        raise TlsLibraryError(error.message) from None


def disable() -> None:
    """Leaves later connections in the clear."""
    _functions.disable()
