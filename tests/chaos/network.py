"""Hosts as network namespaces with addresses of their own, on one bridge; links that can be cut."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from workers.device_lock import lock_path

SUBNET = "10.77.{0}"


def works() -> bool:
    """Return whether this process may make namespaces with links."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    probe = f"tcprobe{os.getpid() % 10_000}"
    made = _ip("netns", "add", probe, check=False)
    veth = ["link", "add", "t0", "type", "veth", "peer", "name", "t1"]
    linked = made and _ip("-n", probe, *veth, check=False)
    if made:
        _ip("netns", "del", probe)
    return linked


class Network:
    """A bridge and hosts on it, or, where that is not possible, everything on this host."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.has_links = works()
        number = os.getpid() % 250
        self._tag = f"tc{number}"
        self._subnet = SUBNET.format(number)
        self._hosts = {name: i for i, name in enumerate(hosts, 2)}

    def __enter__(self) -> Network:
        if not self.has_links:
            return self
        self._remove()
        bridge = f"{self._tag}br"
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{self._subnet}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for name in self._hosts:
            space, outer = self._space(name), f"{self._tag}{name}"
            _ip("netns", "add", space)
            _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", outer, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", "eth0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        if self.has_links:
            self._remove()

    def address(self, host: str) -> str:
        return f"{self._subnet}.{self._hosts[host]}" if self.has_links else "127.0.0.1"

    def on(self, host: str, command: Sequence[str], locks: Path | None = None) -> list[str]:
        """Return the command that runs on a host, whose device locks lie in a folder."""
        if not self.has_links:
            return list(command)
        inside = ["ip", "netns", "exec", self._space(host)]  # its mounts are its own, too
        if locks is not None:
            mount = f'mount --bind "$0" {lock_path("cpu").parent} && exec "$@"'
            inside += ["sh", "-c", mount, str(locks)]
        return [*inside, *command]

    def cut(self, host: str) -> None:
        _ip("link", "set", f"{self._tag}{host}", "down")

    def heal(self, host: str) -> None:
        _ip("link", "set", f"{self._tag}{host}", "up")

    def is_up(self, host: str) -> bool:
        """Return whether a host answers, if only that nobody listens there."""
        try:
            socket.create_connection((self.address(host), 1), 1.0).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    def _space(self, host: str) -> str:
        return f"{self._tag}-{host}"

    def _remove(self) -> None:
        for name in self._hosts:
            _ip("netns", "del", self._space(name), check=False)
            _ip("link", "del", f"{self._tag}{name}", check=False)
        _ip("link", "del", f"{self._tag}br", check=False)


def _ip(*arguments: str, check: bool = True) -> bool:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.returncode == 0
