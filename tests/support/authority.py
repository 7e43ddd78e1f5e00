"""Certificates for tests: an authority, and what it issues, in PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tfdist.config.tls import Tls

_DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority of its own.

    Args:
      folder: of its files.
      name: its name, and the beginning of its files' names.
    """

    def __init__(self, folder: Path, name: str = "lab") -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}-ca.pem"
        self.certificate = self._signed(name, self._key, [], 30 * _DAY, is_authority=True)
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        task: str = "task",
        names: tuple[str, ...] = ("127.0.0.1", "localhost"),
        days: float = 1,
    ) -> Tls:
        """Writes a certificate, and its key; a second one of the same task replaces the first.

        Args:
          task: names the files.
          names: host names and addresses.
          days: until it expires; below 0 it has expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(task, key, list(names), days * _DAY)
        stem = self._folder / f"{self._name}-{task}"
        self._write(
            Path(f"{stem}.key"),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        self._write(Path(f"{stem}.pem"), certificate.public_bytes(serialization.Encoding.PEM))
        return Tls(f"{stem}.pem", f"{stem}.key", str(self.file))

    def _write(self, file: Path, content: bytes) -> None:
        new = file.with_suffix(".new")
        new.write_bytes(content)
        new.chmod(0o600)
        new.rename(file)

    def _signed(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        names: list[str],
        until: datetime.timedelta,
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateBuilder(
            issuer_name=_name(self._name),
            subject_name=_name(name),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - 10 * _DAY,
            not_valid_after=now + until,
        ).add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        if names:
            listed = x509.SubjectAlternativeName([_general(one) for one in names])
            builder = builder.add_extension(listed, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
