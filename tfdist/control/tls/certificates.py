"""Reading certificates: the names in one, and the dates between which it is valid."""

from __future__ import annotations

import datetime
import time

from tfdist.config.printing import printable
from tfdist.config.validation import show_some
from tfdist.control.tls._cryptography import x509


def expired(pem: bytes) -> str:
    """Returns when the first certificate of a PEM file has ended, or will begin; empty if neither.

    Example:
      >>> expired(open("worker.pem", "rb").read())
      'has expired on 2026-11-28 09:30:00 UTC'
    """
    return expiry(x509.load_pem_x509_certificates(pem)[0])


def expiry(certificate: x509.Certificate) -> str:
    """As `expired`, of a certificate."""
    now = datetime.datetime.fromtimestamp(time.time(), datetime.timezone.utc)
    if certificate.not_valid_after_utc < now:
        return f"has expired on {_date(certificate.not_valid_after_utc)}"
    if certificate.not_valid_before_utc > now:
        return f"is not valid before {_date(certificate.not_valid_before_utc)}"
    return ""


def load_der(der: bytes) -> x509.Certificate | None:
    """Returns a certificate; None if it is none."""
    try:
        return x509.load_der_x509_certificate(der)
    except ValueError:
        return None


def issuer(pem: bytes) -> str:
    """Returns the issuer of the first certificate of a PEM file, such as "CN=lab"."""
    return issuer_of(x509.load_pem_x509_certificates(pem)[0])


def issuer_of(certificate: x509.Certificate) -> str:
    """As `issuer`, of a certificate."""
    return printable(certificate.issuer.rfc4514_string()[:200])


def names(certificate: x509.Certificate) -> str:
    """Returns the names and addresses that a certificate is for, such as "node1, 10.0.0.7"."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return "none (no subjectAltName)"
    listed = [
        *found.get_values_for_type(x509.DNSName),
        *map(str, found.get_values_for_type(x509.IPAddress)),
    ]
    return printable(show_some(listed)) or "none"


def names_of_first(pem: bytes) -> str:
    """As `names`, of the first certificate of a PEM file."""
    return names(x509.load_pem_x509_certificates(pem)[0])


def _date(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
