"""A Slurm cluster of two nodes on this machine, for tests. Needs root, slurmd, slurmctld, munge."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tfdist.launch.ports import free_ports

NODES = 2
_PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scontrol")


def missing() -> str | None:
    """Why no cluster can be started here, or None."""
    if os.getuid():
        return "Slurm's daemons need root here"
    lacking = [name for name in _PROGRAMS if shutil.which(name) is None]
    packages = "apt-get install slurmctld slurmd slurm-client munge"
    return f"not installed: {', '.join(lacking)}: {packages}" if lacking else None


class SlurmCluster:
    """Runs Slurm's daemons; `close` ends them.

    Args:
      folder: of all their files.
      cpus: of each node.
    """

    def __init__(self, folder: Path, cpus: int = 4) -> None:
        self._folder = folder
        self._daemons: list[subprocess.Popen] = []
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        host = socket.gethostname().partition(".")[0]
        control, first, second = free_ports(1 + NODES)
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={host}(127.0.0.1)",
            *("SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge"),
            *("ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none"),
            *("SwitchType=switch/none", "MpiDefault=none", "ReturnToService=2"),
            *("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core"),
            f"SlurmctldPort={control}",
            *(f"{key}={folder}/{name}" for key, name in _FILES.items()),
            f"NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs={cpus}",
            f"NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs={cpus}",
            "PartitionName=p Nodes=n[1-2] Default=YES State=UP OverSubscribe=FORCE:4",
        ]
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        for name in ("state", "spool.n1", "spool.n2"):
            (folder / name).mkdir()
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __call__(self, *command: str, timeout: float = 200.0, **variables: str):
        """Runs a command of Slurm's to its end; returns the finished process."""
        return subprocess.run(
            command,
            env={**self.environment, **variables},
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self) -> None:
        if not _munge_answers():
            user = pwd.getpwnam("munge")
            _MUNGE.mkdir(exist_ok=True)
            os.chown(_MUNGE, user.pw_uid, user.pw_gid)
            self._daemons.append(
                subprocess.Popen(
                    ["munged", "--foreground", "--force"], user=user.pw_uid, group=user.pw_gid
                )
            )
            self._wait("munged", _munge_answers)
        self._daemon("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node)
        self._wait("two idle nodes", self._is_idle)

    def _daemon(self, *command: str) -> None:
        with open(self._folder / "daemons.log", "a") as log:
            self._daemons.append(
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
            )

    def _is_idle(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            found = self("sinfo", "-h", "-N", "-o", "%T", timeout=10)
            return found.stdout.split() == ["idle"] * NODES
        return False

    def _wait(self, what: str, is_true) -> None:
        deadline = time.monotonic() + 60
        while not is_true():
            log = self._folder / "daemons.log"
            assert time.monotonic() < deadline, (what, log.exists() and log.read_text()[-3000:])
            time.sleep(0.1)


def _munge_answers() -> bool:
    return subprocess.run(["munge", "-n"], capture_output=True, timeout=20).returncode == 0


_MUNGE = Path("/run/munge")
_FILES = {
    "StateSaveLocation": "state",
    "SlurmdSpoolDir": "spool.%n",
    "SlurmctldPidFile": "slurmctld.pid",
    "SlurmdPidFile": "slurmd.%n.pid",
    "SlurmctldLogFile": "slurmctld.log",
    "SlurmdLogFile": "slurmd.%n.log",
}
