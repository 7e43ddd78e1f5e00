"""A certificate authority that all holders of a secret have, and no one else.

```
    secret --HKDF--> private key of the authority (P-256), the same on each task
                        |
                        +-- signs the certificate of a new key, which each task makes for itself

    a peer's certificate is good if the authority of one's own secret has signed it
```

So TLS, which knows certificates alone, proves in both directions that the peer knows the secret.
An attacker who connects sees the authority's public key and can test guesses of the secret with it:
the secret must be a random one. The certificates never expire: they live in the memory of a task,
and a holder of the secret could make new ones anyway.
"""

from __future__ import annotations

import dataclasses
import datetime

from tfdist.config.tls import FIXED_NAME
from tfdist.control.tls._cryptography import HKDF, ec, hashes, serialization, x509

_PURPOSE = b"tfdist certificate authority 1"
# The order of P-256 (FIPS 186-5). 16 bytes more than it has make the key uniform (A.2.1 there).
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_KEY_BYTES = 48
_BEGIN = datetime.datetime(2000, 1, 1)
# "No well-defined expiration date" (RFC 5280, 4.1.2.5).
_END = datetime.datetime(9999, 12, 31, 23, 59, 59)


@dataclasses.dataclass(frozen=True)
class Material:
    """A task's certificate with its key, and the trusted authorities; all in PEM.

    Attributes:
      certificate: its certificate, and any certificates between it and the authority.
      key: its private key.
      authority: the certificates that it trusts.
    """

    certificate: bytes
    key: bytes = dataclasses.field(repr=False)
    authority: bytes


def issue(secret: bytes) -> Material:
    """Returns a new certificate of the authority of a secret, with a new key.

    Args:
      secret: the job's.
    """
    authority_key = _authority_key(secret)
    authority = _authority_certificate(authority_key)
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    certificate = (
        _certificate(FIXED_NAME, authority.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(FIXED_NAME)]),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    return Material(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        authority.public_bytes(serialization.Encoding.PEM),
    )


def certificate_of(secret: bytes) -> bytes:
    """Returns the certificate of the authority of a secret in PEM, for programs without it."""
    return _authority_certificate(_authority_key(secret)).public_bytes(serialization.Encoding.PEM)


def _authority_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    derived = HKDF(hashes.SHA256(), _KEY_BYTES, salt=None, info=_PURPOSE).derive(secret)
    return ec.derive_private_key(int.from_bytes(derived, "big") % (_ORDER - 1) + 1, ec.SECP256R1())


def _authority_certificate(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # Authorities of different secrets have different names, so that a foreign certificate is
    # reported as one, not as a forged one.
    name = _name(f"tfdist job {identifier.digest.hex()[:16]}")
    return (
        _certificate(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )


def _certificate(
    subject: str | x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=_name(subject) if isinstance(subject, str) else subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=_BEGIN,
        not_valid_after=_END,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
