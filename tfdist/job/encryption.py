"""Encryption of this process's data connections, before it makes any."""

from __future__ import annotations

import functools

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.config.tls import Tls
from tfdist.control import interfaces
from tfdist.control.tls.own_name import check_own_name
from tfdist.errors import CertificateError


def check_certificate(settings: Settings) -> None:
    """Raises what `encrypt` would of this task's certificate, without TensorFlow.

    Args:
      settings: of this process.

    Raises:
      ClusterConfigError: the certificate cannot be used, or a package that TLS needs is missing.
    """
    if settings.tls is not None:
        from tfdist.control.tls.credentials import credentials_of  # needs an extra

        credentials_of(settings.tls)


def check_names(cluster: Cluster, settings: Settings) -> None:
    """Checks that this task's certificate is for the hosts at which other tasks call it.

    These are its host in the cluster, and the address of `TFDIST_INTERFACE`, if that is given.

    Args:
      cluster: the job.
      settings: of this process.

    Raises:
      ClusterConfigError: the certificate is for another host, or cannot be used; or as for
        `interfaces.data_interface`.
    """
    # No task calls an evaluator.
    if settings.tls is None or cluster.address is None or cluster.task_type == "evaluator":
        return
    addresses = [cluster.address]
    if settings.interface is not None:
        addresses.append(f"{interfaces.data_interface(cluster, settings)[1]}:0")
    who = f"{cluster.task_name} at {cluster.address}"
    for host in map(interfaces.host_of, addresses):
        check_own_name(who, settings.tls, host)


def encrypt(settings: Settings, who: str) -> None:
    """Encrypts the data connections that this process makes from now on, if the settings say so.

    May be called again. Each connection takes the newest certificate.

    Args:
      settings: of this process.
      who: its task, for the message.

    Raises:
      ClusterConfigError: a file cannot be read or has expired, or the key is not the certificate's.
      CertificateError: peers would refuse the certificate, as one of another authority; names the
        files.
      TlsLibraryError: there is no OpenSSL 3.
      ImportError: the op library cannot be loaded.
    """
    if settings.tls is None:
        return
    try:
        _encrypt(settings.tls)
    except CertificateError as error:
        origin = ", ".join(f"{name}={value}" for name, value in settings.tls.variables.items())
        raise CertificateError(
            f"{who}: {error}; expected a certificate that its peers accept, received {origin}"
        ) from None


@functools.cache
def _encrypt(origin: Tls) -> None:
    from tfdist.control.tls.authority import Material
    from tfdist.control.tls.credentials import credentials_of  # needs an extra
    from tfdist.ops import tls  # imports TensorFlow

    credentials = credentials_of(origin)

    def configure(material: Material) -> None:
        tls.configure(
            material.certificate, material.key, material.authority, credentials.fixed_name
        )

    credentials.follow(configure)
