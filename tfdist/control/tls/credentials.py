"""A task's certificate: read again when its files are newer, or made of the secret once.

A file that is being replaced is not an error: a task keeps the certificate that it has until the
three files fit together again, and says so.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import ssl
import stat
import threading
import time
from collections.abc import Callable

from tfdist.config.tls import AUTHORITY, CERTIFICATE, FIXED_NAME, KEY, Tls
from tfdist.control.tls.authority import Material, issue
from tfdist.control.tls.certificates import expired
from tfdist.errors import ClusterConfigError, TfdistError

_log = logging.getLogger("tfdist.control")
# Seconds between two looks at the files.
_LOOK_INTERVAL = 0.5
# The parts that each PEM file must have, as RFC 7468 writes them.
_CERTIFICATE = re.compile(rb"-----BEGIN ([A-Z0-9]+ )*CERTIFICATE-----[^-]+-----END ")
_PRIVATE_KEY = re.compile(rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----.+?-----END ", re.DOTALL)

_Stamp = tuple[tuple[int, int, int], ...]


class Credentials:
    """The certificate of this process, as it is now. Thread-safe.

    Args:
      tls: its origin.

    Attributes:
      fixed_name: the name that all peers' certificates have; None: a peer's has its host's.

    Raises:
      ClusterConfigError: a file cannot be read, is no PEM file, or has expired; or the key is not
        the certificate's.
    """

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self.fixed_name = None if tls.secret is None else FIXED_NAME
        self._lock = threading.Lock()
        self._followers: list[Callable[[Material], None]] = []
        self._looked = time.monotonic()
        self._stamp = self._seen = self._files_stamp()
        self._material = issue(tls.secret) if tls.secret is not None else self._read()

    @property
    def material(self) -> Material:
        """The newest certificate; files are looked at again at most twice a second."""
        if self._tls.secret is not None:
            return self._material
        with self._lock:
            now = time.monotonic()
            if now - self._looked < _LOOK_INTERVAL:
                return self._material
            self._looked = now
            stamp = self._files_stamp()
            if stamp in (self._stamp, self._seen):
                return self._material
            # Files that do not fit are reported once, and read again when they change.
            self._seen = stamp
            try:
                self._material = material = self._read()
            except (ClusterConfigError, OSError) as error:
                _log.warning("this task keeps its certificate, since the new one has: %s", error)
                return self._material
            self._stamp = stamp
            followers = list(self._followers)
        _log.info("read the renewed certificate %s", self._tls.certificate)
        for follower in followers:
            try:
                follower(material)
            except TfdistError as error:
                _log.warning("the renewed certificate %s: %s", self._tls.certificate, error)
        return material

    def follow(self, function: Callable[[Material], None]) -> None:
        """Calls a function with the certificate, now and whenever it was renewed."""
        with self._lock:
            self._followers.append(function)
            material = self._material
        function(material)

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Returns a context of Python's own TLS, of version 1.3 alone.

        It shows this task's certificate, and trusts the authority. A server's requires no
        certificate of its clients.

        Args:
          server: whether it is for a server.
        """
        material = self.material
        purpose = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        _load(context, material)
        return context

    def _files_stamp(self) -> _Stamp:
        """Returns what differs as soon as a file is another; a missing file has a stamp, too."""
        found = []
        for path in (self._tls.certificate, self._tls.key, self._tls.authority):
            try:
                about = os.stat(path)
                found.append((about.st_mtime_ns, about.st_ino, about.st_size))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)

    def _read(self) -> Material:
        tls = self._tls
        material = Material(
            _content(CERTIFICATE, tls.certificate, _CERTIFICATE, "certificate"),
            _content(KEY, tls.key, _PRIVATE_KEY, "private key"),
            read_authority(tls.authority),
        )
        _warn_of_readable_key(tls.key)
        try:
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), material)
        except (ssl.SSLError, ValueError) as error:
            raise ClusterConfigError(
                f"{CERTIFICATE}, {KEY}, {AUTHORITY}: expected a certificate in PEM, its own "
                "private key without a password, and certificates of the authority, received "
                f"{tls.certificate}, {tls.key} and {tls.authority}: {_reason(error)}"
            ) from None
        problem = expired(material.certificate)
        if problem:
            raise ClusterConfigError(
                f"{CERTIFICATE}: expected a certificate that is valid now, received "
                f"{tls.certificate}, which {problem}"
            )
        return material


@functools.cache
def credentials_of(tls: Tls) -> Credentials:
    """Returns the credentials of this process, the same at each call.

    Raises:
      ClusterConfigError: as for `Credentials`.
    """
    return Credentials(tls)


def read_authority(path: str) -> bytes:
    """Returns the trusted authorities of `TFDIST_TLS_CA`, in PEM.

    Raises:
      ClusterConfigError: the file cannot be read, or has no certificate.
    """
    return _content(AUTHORITY, path, _CERTIFICATE, "certificate")


def trust(context: ssl.SSLContext, authority: bytes) -> None:
    """Lets a context trust authorities in PEM; raises ValueError if they are damaged."""
    try:
        context.load_verify_locations(cadata=authority.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"the authority's file is damaged: {error}") from None


def _content(variable: str, path: str, pattern: re.Pattern[bytes], what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ClusterConfigError(
            f"{variable}: expected a readable file, received {path!r}: {error.strerror or error}"
        ) from None
    # OpenSSL names neither the file nor what it lacks.
    if pattern.search(content) is None:
        raise ClusterConfigError(
            f"{variable}: expected a {what} in PEM, received {path}, which "
            + (f"has no complete {what}" if content else "is empty")
        )
    return content


@functools.cache
def _warn_of_readable_key(path: str) -> None:
    mode = os.stat(path).st_mode
    # A group may: Kubernetes gives a pod its files so.
    if mode & 0o027:
        _log.warning(
            "%s: other users can read or write %s (mode %03o); expected mode 600 or 640",
            KEY,
            path,
            stat.S_IMODE(mode),
        )


def _load(context: ssl.SSLContext, material: Material) -> None:
    """Gives a context a certificate, its key and the authority; raises ssl.SSLError or ValueError.

    Python takes the first two from a file alone: here from one in memory.
    """
    trust(context, material.authority)
    with os.fdopen(os.memfd_create("tfdist-certificate"), "wb") as file:
        file.write(material.certificate + b"\n" + material.key)
        file.flush()
        # A key with a password would make OpenSSL ask at the terminal.
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=_no_password)


def _no_password() -> bytes:
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)  # of OpenSSL's own errors
    if isinstance(error, ssl.SSLError) and not reason:
        return "the certificate or its key is damaged"
    if reason == "KEY_VALUES_MISMATCH":
        return "the key belongs to another certificate"
    return reason or str(error)
