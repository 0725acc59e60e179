"""The Docker engine of this machine behind TLS, as Minikube offers its own: a proxy that asks for certificates."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOCKET = Path("/var/run/docker.sock")


def _openssl(*words: str, cwd: Path) -> None:
    subprocess.run(["openssl", *words], cwd=cwd, check=True, capture_output=True, timeout=60)


def make_certificates(folder: Path) -> None:
    """An authority, a server and a client, in the files that DOCKER_CERT_PATH is expected to hold."""
    folder.mkdir()
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl("req", "-x509", *key, "-subj", "/CN=test-ca", "-keyout", "ca-key.pem", "-out", "ca.pem", cwd=folder)
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name, stem in (("server", "server-"), ("client", "")):
        _openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{stem}key.pem", "-out", f"{name}.csr", cwd=folder)
        signed = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-extfile", "names")
        _openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{stem}cert.pem", cwd=folder)


@contextmanager
def tls_engine(certificates: Path) -> Iterator[str]:
    """tcp://HOST:PORT of the engine, for clients with a certificate of the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server-cert.pem", certificates / "server-key.pem")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server, context), daemon=True).start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def _accept(server: socket.socket, context: ssl.SSLContext) -> None:
    with contextlib.suppress(OSError):  # closed: the test is over
        while True:
            plain, _ = server.accept()
            threading.Thread(target=_serve, args=(plain, context), daemon=True).start()


def _serve(plain: socket.socket, context: ssl.SSLContext) -> None:
    with (
        contextlib.suppress(OSError),
        context.wrap_socket(plain, server_side=True) as near,
        socket.socket(socket.AF_UNIX) as far,
    ):
        far.connect(str(SOCKET))
        back = threading.Thread(target=_copy, args=(far, near), daemon=True)
        back.start()
        _copy(near, far)
        back.join(60)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
