"""A Slurm cluster whose nodes are two network namespaces. Needs root, slurmd, slurmctld, munge."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from baselines import namespaces

NODES = ("n1", "n2")
_PORTS = {"control": 6817, "node": 6818}  # Slurm's own; each node has an address of its own
_PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scontrol", "ip", "tc")


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
        self._network = namespaces.Network(len(NODES), gigabits=1)
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        host = socket.gethostname().partition(".")[0]
        places = list(zip(NODES, self._network.addresses, strict=True))
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={host}({self._network.addresses[0]})",
            *("SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge"),
            *("ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none"),
            *("SwitchType=switch/none", "MpiDefault=none", "ReturnToService=2"),
            "SlurmdParameters=config_overrides",  # more CPUs than this machine may have
            *("SelectType=select/cons_tres", "SelectTypeParameters=CR_Core"),
            f"SlurmctldPort={_PORTS['control']}",
            *(f"{key}={folder}/{name}" for key, name in _FILES.items()),
            *(
                f"NodeName={node} NodeHostname={host} NodeAddr={address} Port={_PORTS['node']} "
                f"CPUs={cpus}"
                for node, address in places
            ),
            "PartitionName=p Nodes=n[1-2] Default=YES State=UP OverSubscribe=FORCE:4",
        ]
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        names = ["127.0.0.1 localhost", *(f"{address} {node}" for node, address in places)]
        (folder / "hosts").write_text("\n".join(names) + "\n")
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (folder / name).mkdir()
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def within(self, *command: str, node: int = 0) -> list[str]:
        """The command that runs one on a node, where the nodes' names resolve."""
        script = f'mount --bind {self._folder}/hosts /etc/hosts && exec "$@"'
        # `ip netns exec` would hide the control groups, which slurmd looks for.
        enter = ["nsenter", f"--net=/run/netns/{self._network.hosts[node]}", "unshare", "--mount"]
        return [*enter, "sh", "-c", script, "sh", *command]

    def __call__(self, *command: str, timeout: float = 200.0, **variables: str):
        """Runs a command on the first node to its end; returns the finished process."""
        return subprocess.run(
            self.within(*command),
            env={**self.environment, **variables},
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self("scancel", "--user=root", timeout=10)
            self._wait("no job", lambda: not self("squeue", "-h", timeout=10).stdout)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._network.close()

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
        self._daemon(0, "slurmctld", "-D", "-c")
        for index, node in enumerate(NODES):
            self._daemon(index, "slurmd", "-D", "-N", node)
        self._wait("two idle nodes", self._is_idle)

    def _daemon(self, node: int, *command: str) -> None:
        with open(self._folder / "daemons.log", "a") as log:
            self._daemons.append(
                subprocess.Popen(
                    self.within(*command, node=node), env=self.environment, stdout=log, stderr=log
                )
            )

    def _is_idle(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            found = self("sinfo", "-h", "-N", "-o", "%T", timeout=10)
            return found.stdout.split() == ["idle"] * len(NODES)
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
