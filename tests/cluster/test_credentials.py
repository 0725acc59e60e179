"""Kubeconfig files, plugins and service accounts."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.cluster.kubernetes.credentials import Credentials, find, from_files, in_cluster
from elasticdl.errors import Refused, UsageError

Run = Callable[..., None]


def write(path: Path, *, user: dict[str, Any] | None = None, name: str = "here", **top: Any) -> Path:
    config = {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "team"}}],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}:6443/"}}],
        "users": [{"name": name, "user": user or {"token": f"of-{name}"}}],
        **top,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config))
    return path


def plugin(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_current_context_says_server_namespace_and_user(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        found = find(env={"KUBECONFIG": str(write(tmp_path / "a"))})
        assert (found.server, found.namespace, found.context) == ("https://here:6443", "team", "here")
        assert await found.headers() == {"Authorization": "Bearer of-here"}

    run(story())


def test_of_several_files_the_first_to_name_a_thing_wins(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a"), write(tmp_path / "b", name="there")
    env = {"KUBECONFIG": f"{one}:{tmp_path / 'missing'}:{two}"}
    assert find(env=env).context == "here"
    assert find("there", env=env).server == "https://there:6443"
    with pytest.raises(UsageError, match=r"context=nowhere: is not in the kubeconfig. It has here, there"):
        find("nowhere", env=env)


def test_no_file_at_all_says_so_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no such file. Name a kubeconfig file, or run inside a cluster"):
        find(env={"KUBECONFIG": str(tmp_path / "missing")})


def test_relative_paths_start_at_the_file(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc" / "token").write_text("by-path\n")
        path = write(tmp_path / "etc" / "config", user={"tokenFile": "token"})
        assert await from_files([path]).headers() == {"Authorization": "Bearer by-path"}

    run(story())


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_plugin_is_asked_once_and_again_when_its_token_is_no_longer_taken(
    run: Run, tmp_path: Path, version: str
) -> None:
    answer = '{"status": {"token": "'
    script = f"""echo x >> {tmp_path}/asked; echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info
        echo '{answer}'$PREFIX-$1-$(wc -l < {tmp_path}/asked)'"}}}}'"""
    plugin(tmp_path / "ask", script)
    user = {
        "exec": {
            "apiVersion": f"client.authentication.k8s.io/{version}",
            "command": "./ask",
            "args": ["me"],
            "env": [{"name": "PREFIX", "value": "p"}],
        }
    }

    async def story() -> None:
        found = from_files([write(tmp_path / "config", user=user)])
        assert await found.headers() == {"Authorization": "Bearer p-me-1"}
        assert await found.headers() == {"Authorization": "Bearer p-me-1"}
        await found.renew()
        assert await found.headers() == {"Authorization": "Bearer p-me-2"}
        asked = json.loads((tmp_path / "info").read_text())
        assert asked["apiVersion"] == f"client.authentication.k8s.io/{version}"

    run(story())


@pytest.mark.parametrize(
    ("script", "version", "message"),
    [
        ("echo sorry >&2; exit 3", "v1", "ended with exit code 3: sorry"),
        ("echo hello", "v1", "answered with no ExecCredential"),
        (None, "v1", "cannot run .*: No such file or directory. Get it from the shop."),
        ("true", "v1alpha1", "supports client.authentication.k8s.io/v1alpha1"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_reported(
    run: Run, tmp_path: Path, script: str | None, version: str, message: str
) -> None:
    if script is not None:
        plugin(tmp_path / "ask", script)
    called = {"apiVersion": f"client.authentication.k8s.io/{version}", "command": "./ask"}
    user = {"exec": {**called, "installHint": "Get it from the shop."}}

    async def story() -> None:
        with pytest.raises(Refused, match=f"context here: .*{message}"):
            await from_files([write(tmp_path / "config", user=user)]).headers()

    run(story())


def test_in_a_pod_the_token_is_read_again_when_it_was_replaced(run: Run, tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("team")
    (tmp_path / "token").write_text("old")

    async def story() -> None:
        env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        found = in_cluster(env, tmp_path)
        assert (found.server, found.namespace) == ("https://10.0.0.1:443", "team")
        assert await found.headers() == {"Authorization": "Bearer old"}
        (tmp_path / "token").write_text("new")
        await found.renew()
        assert await found.headers() == {"Authorization": "Bearer new"}
        assert in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path).server == "https://[fd00::1]:443"

    run(story())


def test_what_is_secret_is_not_in_what_is_logged(run: Run, tmp_path: Path) -> None:
    answer = {"status": {"token": "hush", "clientCertificateData": "hush", "clientKeyData": "hush"}}
    command = plugin(tmp_path / "plugin", f"echo '{json.dumps(answer)}'")
    spoken = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(command)}

    async def story() -> None:
        for user in ({"token": "hush"}, {"username": "me", "password": "hush"}, {"exec": spoken}):
            found = from_files([write(tmp_path / "config", user=user)])
            await found.headers()
            assert "here:6443" in repr(found) and "hush" not in repr(found)

    run(story())


def test_the_command_line_does_not_pay_for_kubernetes() -> None:
    # Importing the client takes a quarter of a second, which a local job does not need.
    code = "import sys, elasticdl.cli.main, elasticdl.master.main; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("server", "spared", "proxy"),
    [
        ("https://api.example:6443", "", "http://proxy:3128"),
        ("https://api.example:6443", "elsewhere.example,.example", None),
        ("https://api.example:6443", "api.example", None),
        ("https://10.96.0.1:443", "10.96.0.0/12,cluster.local", None),
        ("https://10.96.0.1:443", "no range/12,10.96.0.0/12", None),
        ("https://10.128.0.1:443", "10.96.0.0/12", "http://proxy:3128"),
        ("https://[fd00::1]:443", "fd00::/8", None),
        ("https://127.0.0.1:6443", "", None),
        ("https://[::1]:6443", "", None),
        ("https://localhost:6443", "", None),
        ("http://api.example:8080", "", None),
    ],
)
def test_the_environment_names_a_proxy(
    monkeypatch: pytest.MonkeyPatch, server: str, spared: str, proxy: str | None
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", spared)
    assert Credentials(server).proxy == proxy


def test_a_proxy_without_a_scheme_speaks_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    assert Credentials("https://api.example:6443").proxy == "http://proxy.example:3128"


def test_a_pod_asks_its_own_cluster_without_the_jobs_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("team")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert in_cluster({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, tmp_path).proxy is None


def test_the_kubeconfigs_proxy_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert Credentials("https://api.example", cluster={"proxy-url": "http://mine:1"}).proxy == "http://mine:1"
