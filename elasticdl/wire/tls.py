"""TLS of the control plane: clients trust only the certificate of their job."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from elasticdl.errors import JobFailed, Problem, UsageError
from elasticdl.job import names

# Every job's certificate has this name besides its own. A client trusts only that certificate, so the address (a
# Service, a pod, the end of a tunnel) need not be in it.
ANY_MASTER = "elasticdl-master"
_VALID = datetime.timedelta(days=3650)
_CLOCKS_DIFFER = datetime.timedelta(days=1)

Options = Sequence[tuple[str, Any]]


def make(name: str) -> tuple[str, str]:
    """A new certificate for a master of this name, and its key, both as PEM."""
    from cryptography import x509  # here, since only a submission needs it
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ANY_MASTER)])  # the job's own name may be too long
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name), x509.DNSName(ANY_MASTER)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


def channel(address: str, options: Options, certificate: str | None) -> grpc.aio.Channel:
    """A channel to the master that has the key of this certificate; without a certificate, in plain text."""
    if not certificate:
        return grpc.aio.insecure_channel(address, options=list(options))
    return grpc.aio.secure_channel(address, _trusting(certificate), options=_named(options))


def blocking_channel(address: str, options: Options, certificate: str | None) -> grpc.Channel:
    """The same for a thread without an asyncio loop."""
    if not certificate:
        return grpc.insecure_channel(address, options=list(options))
    return grpc.secure_channel(address, _trusting(certificate), options=_named(options))


def listen(server: grpc.aio.Server, address: str, env: Mapping[str, str]) -> int:
    """Let the server listen at the address, with the certificate of this process if there is one; returns the port."""
    certificate, key = env.get(names.ENV_TLS_CERT), env.get(names.ENV_TLS_KEY)
    if certificate and not key:
        what = "there is a certificate but no key"
        raise UsageError([Problem(names.ENV_TLS_KEY, "", what, f"Give both, or no {names.ENV_TLS_CERT}.")])
    try:
        if not certificate or not key:
            return server.add_insecure_port(address)
        shown = grpc.ssl_server_credentials([(key.encode(), certificate.encode())])
        return server.add_secure_port(address, shown)
    except RuntimeError as error:
        raise JobFailed(f"the master cannot listen at {address}: {error}") from error


def _trusting(certificate: str) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(root_certificates=certificate.encode())


def _named(options: Options) -> list[tuple[str, Any]]:
    return [*options, ("grpc.ssl_target_name_override", ANY_MASTER)]
