"""The kubelet and the controller of indexed Jobs, played with processes.

    pod train-worker-0-0       pod train-worker-0-1
    10.77.0.1, own hostname    10.77.0.2, own hostname
           |                          |
           +-------- switch ----------+        and a hosts file with the names of the pods that run

A pod is a process in namespaces of its own, with the command and the environment of the rendered
manifest and nothing else of this process's. A restarted pod has another address, as on Kubernetes,
and a pod that does not run has no name. Files and users are this machine's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.launching import PACKAGE
from support.manifests import environment, expand

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from baselines import namespaces

IS_MISSING = os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "unshare", "hostname")))
_NETNS = Path("/etc/netns")  # `ip netns exec` mounts what is below it over /etc
_DOMAIN = "default.svc.cluster.local"


class Pod:
    """A running pod.

    Args:
      name: its host name.
      host_line: its address and names, as in a hosts file.
      process: its first process.
      log: the file of its output.
    """

    def __init__(self, name: str, host_line: str, process: subprocess.Popen, log: Path) -> None:
        self.name, self.host_line, self.process, self.log = name, host_line, process, log

    def text(self) -> str:
        """The pod's output."""
        return self.log.read_text(errors="replace")


class Kubelet:
    """Starts pods; `close` kills them.

    Args:
      starts: how many pods are started at most, including restarts.
      folder: for their logs.
    """

    def __init__(self, starts: int, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._pods: list[Pod] = []
        try:
            self._network = namespaces.Network(starts, gigabits=1)
        except namespaces.NotPermitted as error:
            raise AssertionError(f"run as root with iproute2: {error}") from error
        self._stack.callback(self._network.close)
        for host in self._network.hosts:
            folder = _NETNS / host
            folder.mkdir(parents=True)
            self._stack.callback(shutil.rmtree, folder)
            # As a name server that knows no other names.
            (folder / "nsswitch.conf").write_text("hosts: files\n")
        self._publish()

    def start(self, name: str, service: str, template: dict[str, Any], **values: str) -> Pod:
        """Starts a pod.

        Args:
          name: its host name.
          service: the headless service.
          template: the pod's, as rendered.
          values: variables that are not in the template, or refer to something there.
        """
        number = len(self._pods)
        host, address = self._network.hosts[number], self._network.addresses[number]
        (container,) = template["spec"]["containers"]
        environ = {"HOSTNAME": name, "PATH": os.environ["PATH"], "PYTHONPATH": PACKAGE, **values}
        environ |= environment(template, values)
        within = ["ip", "netns", "exec", host, "unshare", "--uts"]
        rename = ["sh", "-c", 'hostname "$0" && exec "$@"', name]
        log = self._folder / f"{name}.{number}.log"
        # Its name is known before it runs, as with publishNotReadyAddresses.
        host_line = f"{address} {name}.{service}.{_DOMAIN} {name}.{service} {name}\n"
        self._publish(host_line)
        with open(log, "w") as output:
            process = subprocess.Popen(
                [*within, *rename, *map(expand, container["command"])],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        pod = Pod(name, host_line, process, log)
        self._pods.append(pod)
        return pod

    def _publish(self, starting: str = "") -> None:
        running = [pod for pod in self._pods if pod.process.poll() is None]
        text = "127.0.0.1 localhost\n" + starting
        text += "".join(pod.host_line for pod in running)
        for host in self._network.hosts:
            # In place, and never empty: a running pod has this very file mounted.
            file = os.open(_NETNS / host / "hosts", os.O_WRONLY | os.O_CREAT, 0o644)
            os.pwrite(file, text.encode(), 0)
            os.ftruncate(file, len(text.encode()))
            os.close(file)

    def close(self) -> None:
        """Kills the pods and removes their namespaces."""
        for pod in self._pods:
            if pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait(10)
        self._stack.close()


class IndexedJob:
    """The controller of an indexed Job, as far as a rendered one needs it.

    Args:
      kubelet: starts its pods.
      document: the Job.
      secret: the job's shared secret.
      room: for how many pods there is room.
    """

    def __init__(self, kubelet: Kubelet, document: dict, secret: str, room: int) -> None:
        self._kubelet, self._name = kubelet, document["metadata"]["name"]
        self._spec, self._secret = document["spec"], secret
        self.room = room
        self.pods: dict[int, Pod] = {}
        self.ended: list[tuple[str, int]] = []
        self._failures: dict[int, int] = {}
        self._succeeded: dict[int, Pod] = {}

    @property
    def succeeded(self) -> list[Pod]:
        """The pods that have ended with 0, each index once."""
        return list(self._succeeded.values())

    def is_complete(self) -> bool:
        """Whether the Job's success policy is met."""
        (rule,) = self._spec["successPolicy"]["rules"]
        return len(self._succeeded) >= rule["succeededCount"]

    def run_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Starts pods, also again, until something is true."""
        deadline = time.monotonic() + seconds
        while not condition():
            self._reconcile()
            logs = "\n".join(f"{pod.name}:\n{pod.text()[-3000:]}" for pod in self.pods.values())
            assert time.monotonic() < deadline, f"{self.ended}\n{logs}"
            time.sleep(0.1)

    def _reconcile(self) -> None:
        for index, pod in list(self.pods.items()):
            code = pod.process.poll()
            if code is None:
                continue
            del self.pods[index]
            # As a container's: 128 + n if signal n has ended it.
            code = 128 - code if code < 0 else code
            self.ended.append((pod.name, code))
            if code == 0:
                self._succeeded[index] = pod
            elif code != self._ignored_code():
                self._failures[index] = self._failures.get(index, 0) + 1
                limit = self._spec["backoffLimitPerIndex"]
                assert self._failures[index] <= limit, f"{pod.name} has failed:\n{pod.text()}"
        for index in range(self._spec["completions"]):
            is_wanted = index not in self.pods and index not in self._succeeded
            if is_wanted and len(self.pods) < min(self.room, self._spec["parallelism"]):
                self.pods[index] = self._kubelet.start(
                    f"{self._name}-{index}",
                    self._spec["template"]["spec"]["subdomain"],
                    self._spec["template"],
                    JOB_COMPLETION_INDEX=str(index),
                    TFDIST_SECRET=self._secret,
                )

    def _ignored_code(self) -> int:
        (code,) = self._spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
        return code
