"""The package `cryptography`, which an extra brings."""

from __future__ import annotations

from tfdist._extras import install_command
from tfdist.errors import ClusterConfigError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    # An old system package may lack a function: the reason is a part of the message.
    raise ClusterConfigError(
        f"encrypted connections (TFDIST_TLS) need the package cryptography of the extra "
        f"tfdist[tls], received: {error}; {install_command('tls')}"
    ) from None

__all__ = ["HKDF", "ec", "hashes", "serialization", "x509"]
