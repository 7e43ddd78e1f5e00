"""Hosts with an ssh server each: network namespaces behind a switch."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from support.launching import PACKAGE, Launched

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from baselines import namespaces

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
IS_MISSING = os.geteuid() != 0 or not all(map(shutil.which, (SSHD, "ssh", "ip", "tc")))
_CONFIG = """
ListenAddress {address}
HostKey {folder}/host-key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""


class SshHosts:
    """Hosts that can be reached with ssh; `close` ends all their processes.

    Args:
      count: their number.
      folder: for keys and scripts; all hosts see it.
    """

    def __init__(self, count, folder):
        self._folder = folder
        self._stack = contextlib.ExitStack()
        try:
            self.network = namespaces.Network(count, gigabits=1)
        except namespaces.NotPermitted as error:
            raise AssertionError(f"run as root with iproute2: {error}") from error
        self._stack.callback(self.network.close)
        self.addresses = self.network.addresses
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self):
        for name in ("key", "host-key"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self._folder / name]
            subprocess.run(make, check=True)
        # Where Debian's sshd wants to find an empty folder.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for index, address in enumerate(self.addresses):
            config = self._folder / f"sshd-{index}"
            config.write_text(_CONFIG.format(address=address, folder=self._folder))
            command = self._within(index, [SSHD, "-D", "-e", "-f", str(config)])
            with open(self._folder / f"sshd-{index}.log", "w") as log:
                server = subprocess.Popen(command, stderr=log)
            self._stack.callback(self._end, server)
        for index in range(len(self.addresses)):
            self._wait_for_server(index)

    @property
    def ssh(self):
        """The value of `--ssh`."""
        return (
            f"ssh -i {self._folder}/key -o StrictHostKeyChecking=no -o LogLevel=ERROR "
            f"-o UserKnownHostsFile={self._folder}/known-hosts"
        )

    def run(self, *words):
        """Starts `tfdist run` with options and a script on the first host."""
        return self.start("run", *words)

    def start(self, name, *words):
        """Starts a command of tfdist that starts workers, by its name, on the first host."""
        command = [sys.executable, "-m", "tfdist", name, "--ssh", self.ssh, *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "TF_CPP_MIN_LOG_LEVEL": "3"}
        launched = Launched(self._within(0, command), environment)
        self._stack.callback(launched.close)
        return launched

    def processes(self, index):
        """The ids of a host's processes, except its ssh server's."""
        shown = subprocess.run(
            ["ip", "netns", "pids", self.network.hosts[index]], capture_output=True, check=True
        )
        pids = []
        for pid in map(int, shown.stdout.split()):
            with contextlib.suppress(OSError):
                if "sshd" not in Path(f"/proc/{pid}/comm").read_text():
                    pids.append(pid)
        return pids

    def wait_until_empty(self, index, timeout=15):
        """Waits until no process of a job is left on a host."""
        deadline = time.monotonic() + timeout
        while left := self.processes(index):
            assert time.monotonic() < deadline, left
            time.sleep(0.05)

    def close(self):
        """Ends all processes and removes the hosts."""
        self._stack.close()

    def _within(self, index, command):
        return ["ip", "netns", "exec", self.network.hosts[index], *command]

    def _wait_for_server(self, index):
        deadline = time.monotonic() + 10
        while True:
            try:
                namespaces_client(self.network.hosts[index], self.addresses[index])
                return
            except (OSError, subprocess.CalledProcessError):
                log = (self._folder / f"sshd-{index}.log").read_text()
                assert time.monotonic() < deadline, log
                time.sleep(0.05)

    @staticmethod
    def _end(server):
        server.terminate()
        server.wait(10)


def namespaces_client(host, address):
    """Connects to a host's ssh server from the host itself."""
    code = f"import socket; socket.create_connection(({address!r}, 22), 1)"
    command = ["ip", "netns", "exec", host, sys.executable, "-c", code]
    subprocess.run(command, check=True, capture_output=True)
