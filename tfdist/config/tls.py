"""The variables of TLS: certificates from files, or made from the job's secret."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from tfdist.errors import ClusterConfigError

CERTIFICATE, KEY, AUTHORITY = FILES = ("TFDIST_TLS_CERT", "TFDIST_TLS_KEY", "TFDIST_TLS_CA")
# All variables of a task that encrypts, beside the secret.
VARIABLES = ("TFDIST_TLS", *FILES)
SECRET_MODE = "secret"
# All certificates that a secret makes have this name: it is their authority that counts. No host
# has a name in ".invalid" (RFC 2606).
FIXED_NAME = "task.tfdist.invalid"
# The key of a job's authority can be found by trying secrets, so a secret must be a random one.
_BYTES, _HEX_DIGITS, _BASE64_CHARACTERS = 16, 32, 22
# A random text of that length has fewer with a probability below 1e-6.
_MIN_DIFFERENT = 7
HOW = "'openssl rand -hex 32' makes one"


@dataclasses.dataclass(frozen=True)
class Tls:
    """The origin of a task's certificate; every connection of the task is encrypted.

    Args:
      certificate: the PEM file of its certificate, and of any certificates between it and the
        authority (`TFDIST_TLS_CERT`); empty if a secret makes it.
      key: the PEM file of its private key (`TFDIST_TLS_KEY`).
      authority: the PEM file of the certificates that it trusts (`TFDIST_TLS_CA`).
      secret: the secret from which all tasks derive one authority (`TFDIST_TLS=secret`), or None.
    """

    certificate: str = ""
    key: str = ""
    authority: str = ""
    secret: bytes | None = dataclasses.field(default=None, repr=False)

    def __str__(self) -> str:
        if self.secret is not None:
            return "TLS, with certificates made from the secret"
        return f"TLS, with the certificate {self.certificate}"

    @property
    def variables(self) -> dict[str, str]:
        """The variables that give other processes the same, beside the secret."""
        if self.secret is not None:
            return {"TFDIST_TLS": SECRET_MODE}
        return dict(zip(FILES, (self.certificate, self.key, self.authority), strict=True))


def from_environment(environ: Mapping[str, str], secret: bytes | None) -> Tls | None:
    """Returns what the variables say; None if they do not ask for TLS.

    Args:
      environ: variables by name.
      secret: the job's secret, or None.

    Raises:
      ClusterConfigError: they contradict each other, or one is missing; or the secret could be
        guessed.
    """
    mode = environ.get("TFDIST_TLS", "").strip()
    files = [environ.get(name, "").strip() for name in FILES]
    given = [name for name, file in zip(FILES, files, strict=True) if file]
    if mode and mode != SECRET_MODE:
        raise ClusterConfigError(
            f"TFDIST_TLS: expected 'secret', or none and {', '.join(FILES)}, received {mode!r}"
        )
    if mode and given:
        raise ClusterConfigError(
            f"expected either TFDIST_TLS=secret or {', '.join(FILES)}, received TFDIST_TLS=secret "
            f"and {', '.join(given)}"
        )
    if given and len(given) < len(FILES):
        missing = ", ".join(name for name in FILES if name not in given)
        raise ClusterConfigError(
            f"expected all of {', '.join(FILES)}, or none of them, received no {missing}"
        )
    if given:
        certificate, key, authority = files
        return Tls(certificate, key, authority)
    if not mode:
        return None
    if secret is None:
        raise ClusterConfigError(
            "TFDIST_TLS=secret: expected the job's secret in TFDIST_SECRET or TFDIST_SECRET_FILE, "
            f"received none; {HOW}"
        )
    problem = weakness(secret)
    if problem:
        raise ClusterConfigError(
            "TFDIST_TLS=secret: expected a secret of at least 128 random bits, since whoever "
            f"reaches a task could try others at leisure, received one {problem}; {HOW}"
        )
    return Tls(secret=secret)


def weakness(secret: bytes) -> str:
    """Returns why a secret cannot have 128 random bits, or is likely not to; empty if it may.

    It knows hexadecimal digits, base64 and plain bytes. A text that a person thought of has words,
    and seldom capital and small letters as a random text has them.

    Example:
      >>> weakness(b"correct horse battery staple")
      'that is neither hexadecimal nor base64'
    """
    try:
        text = secret.decode("ascii")
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable():
        is_short, what = len(secret) < _BYTES, f"of {len(secret)} bytes"
    elif re.fullmatch(r"[0-9A-Fa-f]+", text):
        is_short, what = len(text) < _HEX_DIGITS, f"of {len(text)} hexadecimal digits"
    elif re.fullmatch(r"[0-9A-Za-z+/_-]+=*", text):
        characters = len(text.rstrip("="))
        is_short, what = characters < _BASE64_CHARACTERS, f"of {characters} base64 characters"
        is_mixed = re.search("[A-Z]", text) and re.search("[a-z]", text)
        if not is_short and not is_mixed:
            return "without both capital and small letters, as base64 has them"
    else:
        return "that is neither hexadecimal nor base64"
    if is_short:
        return what
    different = len(set(secret))
    if different < _MIN_DIFFERENT:
        return f"with {different} different character{'s' * (different > 1)}"
    if secret in (secret + secret)[1:-1]:
        return "that repeats itself"
    return ""
