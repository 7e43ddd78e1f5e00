"""gRPC's credentials for servers and for channels, made of a task's certificate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc

from tfdist.control.tls.authority import Material
from tfdist.control.tls.credentials import Credentials


def server_credentials(
    credentials: Credentials, on_handshake: Callable[[], None], wants_certificates: bool = True
) -> grpc.ServerCredentials:
    """Returns credentials for a server, which renews its certificate.

    Args:
      credentials: the task's.
      on_handshake: called at the beginning of each handshake, by a thread of gRPC.
      wants_certificates: whether callers need a certificate, too.
    """
    served = [credentials.material]

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        # Asked at each handshake; None leaves it as it is.
        on_handshake()
        material = credentials.material
        if material is served[0]:
            return None
        served[0] = material
        return _configuration(material)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(served[0]), renewed, require_client_authentication=wants_certificates
    )


def secure_channel(
    target: str,
    options: Sequence[tuple[str, object]],
    material: Material,
    fixed_name: str | None,
) -> grpc.Channel:
    """Returns a channel on which both sides show certificates.

    Args:
      target: gRPC's name of the server, which its certificate also has, without a `fixed_name`.
      options: of the channel.
      material: this task's certificate; a channel keeps it.
      fixed_name: the name in the certificates of all servers, or None.
    """
    if fixed_name is not None:
        options = [*options, ("grpc.ssl_target_name_override", fixed_name)]
    return grpc.secure_channel(
        target,
        grpc.ssl_channel_credentials(material.authority, material.key, material.certificate),
        options,
    )


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], material.authority
    )
