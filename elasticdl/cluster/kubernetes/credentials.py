"""An API server's address and our identity there, from a kubeconfig or from the pod in which this process runs."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib import request
from urllib.parse import urlsplit

import yaml

from elasticdl.errors import Problem, Refused, UsageError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_SECONDS = 60.0
_EXEC_VERSIONS = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1"))


@dataclass
class Credentials:
    """An API server and one of its users. `renew` reads tokens and certificates of files and plugins again."""

    server: str
    namespace: str = "default"
    context: str = ""
    cluster: Mapping[str, Any] = field(default_factory=dict)  # as in a kubeconfig, with absolute paths
    # Tokens, passwords and keys: must not be logged.
    user: Mapping[str, Any] = field(default_factory=dict, repr=False)
    outside: bool = True  # of the cluster: the environment's proxy applies
    _token: str | None = field(default=None, repr=False)
    _certificate: tuple[str, str] | None = field(default=None, repr=False)  # PEM texts from a plugin

    @property
    def proxy(self) -> str | None:
        """From the kubeconfig, else from the environment, like kubectl. A pod connects to its own cluster directly:
        its environment is the job's, as in --envs=HTTPS_PROXY=…"""
        found: str | None = self.cluster.get("proxy-url")
        return found or (_proxy_of_environment(self.server) if self.outside else None)

    @property
    def server_name(self) -> str | None:
        """The name in the server's certificate, if it differs from the address."""
        found: str | None = self.cluster.get("tls-server-name")
        return found

    async def headers(self) -> dict[str, str]:
        if self._token is None and self._certificate is None:
            await self.renew()
        found = {"Impersonate-User": str(self.user["as"])} if self.user.get("as") else {}
        if self._token:
            found["Authorization"] = f"Bearer {self._token}"
        elif "username" in self.user:
            pair = f"{self.user['username']}:{self.user.get('password', '')}"
            found["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return found

    async def renew(self) -> None:
        """Read the token or call the plugin again. Tokens in pods are replaced every hour."""
        if "tokenFile" in self.user:
            self._token = (await asyncio.to_thread(Path(self.user["tokenFile"]).read_text)).strip()
        elif self.user.get("token"):
            self._token = self.user["token"]
        elif "exec" in self.user:
            await self._ask_plugin(self.user["exec"])

    def tls(self) -> ssl.SSLContext:
        """A context that trusts the server's authority and shows the user's certificate."""
        authority = _pem(self.cluster, "certificate-authority")
        context = ssl.create_default_context(cadata=authority)
        if self.cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        shown = self._certificate or (_pem(self.user, "client-certificate"), _pem(self.user, "client-key"))
        if shown[0] and shown[1]:
            # The ssl module reads a certificate only from a file; this one is removed before returning.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # readable only by its owner
                file.write(shown[0] + "\n" + shown[1])
                file.flush()
                context.load_cert_chain(file.name)
        return context

    async def _ask_plugin(self, plugin: Mapping[str, Any]) -> None:
        command, version = str(plugin.get("command", "")), plugin.get("apiVersion")
        if version not in _EXEC_VERSIONS:
            raise Refused(f"context {self.context}: the plugin {command} supports {version}, not {_EXEC_VERSIONS[0]}")
        asked: dict[str, Any] = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
        if plugin.get("provideClusterInfo"):
            known = {k: v for k, v in self.cluster.items() if k != "certificate-authority"}
            asked["spec"]["cluster"] = {**known, "server": self.server}
        own = {str(pair["name"]): str(pair["value"]) for pair in plugin.get("env") or []}
        env = {**os.environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
        arguments = [str(argument) for argument in plugin.get("args") or []]
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                command, *arguments, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            hint = plugin.get("installHint") or "Install it, or choose another context."
            raise Refused(
                f"context {self.context}: cannot run the plugin {command}: {error.strerror}. {hint}"
            ) from None
        try:
            async with asyncio.timeout(EXEC_SECONDS):
                answer, complaint = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise Refused(f"context {self.context}: {command} gave no answer within {EXEC_SECONDS:g} s") from None
        if process.returncode:
            said = complaint.decode(errors="replace").strip()
            raise Refused(f"context {self.context}: {command} ended with exit code {process.returncode}: {said}")
        try:
            given = json.loads(answer)["status"]
            self._token = given.get("token")
            if "clientCertificateData" in given:
                self._certificate = given["clientCertificateData"], given["clientKeyData"]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise Refused(f"context {self.context}: {command} answered with no ExecCredential: {error!r}") from None


def find(context: str | None = None, *, prefer_file: bool = False, env: Mapping[str, str] | None = None) -> Credentials:
    """The credentials of a context; inside a pod those of the pod, unless a context or a file is requested."""
    env = os.environ if env is None else env
    if context is None and not prefer_file and "KUBERNETES_SERVICE_HOST" in env and SERVICE_ACCOUNT.exists():
        return in_cluster(env)
    return from_files(_paths(env), context)


def configured(env: Mapping[str, str] | None = None) -> bool:
    """Whether any cluster is configured: a kubeconfig, or the cluster of this pod."""
    env = os.environ if env is None else env
    inside = "KUBERNETES_SERVICE_HOST" in env and SERVICE_ACCOUNT.exists()
    return inside or any(path.is_file() for path in _paths(env))


def in_cluster(env: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> Credentials:
    host, port = env["KUBERNETES_SERVICE_HOST"], env.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    cluster, user = {"certificate-authority": str(account / "ca.crt")}, {"tokenFile": str(account / "token")}
    namespace = (account / "namespace").read_text().strip()
    return Credentials(server, namespace, "in-cluster", cluster, user, outside=False)


def from_files(paths: list[Path], context: str | None = None) -> Credentials:
    """From kubeconfig files; the first file that defines a name wins, like in kubectl."""
    named: dict[str, dict[str, dict[str, Any]]] = {"clusters": {}, "users": {}, "contexts": {}}
    current = None
    there = [path for path in paths if path.is_file()]
    for path in there:
        try:
            text = yaml.safe_load(path.read_text()) or {}
            current = current or text.get("current-context")
            for kind, members in named.items():
                for item in text.get(kind) or []:
                    members.setdefault(item["name"], _absolute(item.get(kind[:-1]) or {}, path.parent))
        except OSError as error:
            raise _problem("KUBECONFIG", str(path), f"cannot be read: {error.strerror}", "Fix it.") from error
        except (yaml.YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError) as error:
            what = "is not a kubeconfig"
            raise _problem("KUBECONFIG", str(path), what, "It should be YAML with contexts.") from error
    wanted = context or current
    if not there:
        shown = os.pathsep.join(map(str, paths))
        raise _problem("KUBECONFIG", shown, "there is no such file", "Name a kubeconfig file, or run inside a cluster.")
    if not wanted or wanted not in named["contexts"]:
        known = ", ".join(sorted(named["contexts"])) or "none"
        raise _problem("context", wanted or "", "is not in the kubeconfig", f"It has {known}.")
    chosen = named["contexts"][wanted]
    cluster = named["clusters"].get(chosen.get("cluster", ""), {})
    if "server" not in cluster:
        raise _problem("context", wanted, "names no cluster with a server", "Fix the kubeconfig.")
    user = named["users"].get(chosen.get("user", ""), {})
    return Credentials(cluster["server"].rstrip("/"), chosen.get("namespace") or "default", wanted, cluster, user)


def _paths(env: Mapping[str, str]) -> list[Path]:
    named = [Path(path) for path in env.get("KUBECONFIG", "").split(os.pathsep) if path]
    return named or [Path.home() / ".kube" / "config"]


def _absolute(item: dict[str, Any], folder: Path) -> dict[str, Any]:
    paths = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
    found: dict[str, Any] = {
        key: str(folder / value) if key in paths and value else value for key, value in item.items()
    }
    command = (found.get("exec") or {}).get("command", "")
    if "/" in command:  # a path is relative to the file; a plain name is found in PATH
        found["exec"] = {**found["exec"], "command": str(folder / command)}
    return found


def _pem(item: Mapping[str, Any], name: str) -> str | None:
    if item.get(f"{name}-data"):
        return base64.b64decode(item[f"{name}-data"]).decode()
    return Path(item[name]).read_text() if item.get(name) else None


def _proxy_of_environment(server: str) -> str | None:
    """HTTPS_PROXY, unless NO_PROXY lists the server: its name, a domain, or a range of addresses."""
    parts = urlsplit(server)
    proxies, host = request.getproxies_environment(), parts.hostname or ""
    by_name = request.proxy_bypass_environment(parts.netloc, proxies)  # type: ignore[attr-defined]  # in no stub
    if host == "localhost" or by_name:
        return None
    spared = ["127.0.0.0/8", "::1", *proxies.get("no", "").split(",")]
    proxy = proxies.get(parts.scheme)
    if not proxy or any(_covers(entry.strip(), host) for entry in spared):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _covers(addresses: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(addresses, strict=False)
    except ValueError:  # one of them is a name
        return False


def _problem(where: str, value: str, what: str, remedy: str) -> UsageError:
    return UsageError([Problem(where, value, what, remedy)])
