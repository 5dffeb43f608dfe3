"""A rendered pod run on this machine, as a kubelet would: probes, restarts, preStop, grace.

Volumes are folders, images are this checkout, the worker's ranks are fakes. Knows no cluster.
"""

import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.e2e.replica import ROOT, wait_until

# what stands for a container's own program
_STANDS_FOR = {"worker_svc": "tests.fakes.hash_worker"}


@dataclass
class LocalContainer:
    """One container: its process, and how it ended."""

    spec: dict[str, Any]
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    ended_at: float = 0.0
    told_to_end_at: float = 0.0
    was_killed: bool = False

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.spec["name"])

    def start(self, log: IO[bytes]) -> None:
        """Runs the container's command with its environment."""
        command = [*self.spec["command"], *self.spec["args"]]
        self.process = self.spawn(command, log)

    def spawn(self, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Runs a command as in the container."""
        words = [self.local(word) for word in command]
        words = [sys.executable if word == "python" else word for word in words]
        words = [_STANDS_FOR.get(word, word) for word in words]
        return subprocess.Popen(words, env=self.environment(), stdout=log, stderr=log)

    def environment(self) -> dict[str, str]:
        """The container's variables, and what this checkout needs."""
        own = {e["name"]: self.local(e["value"]) for e in self.spec["env"] if "value" in e}
        paths = os.pathsep.join([str(ROOT), str(ROOT / "client")])
        needed = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
        return own | needed

    def local(self, word: str) -> str:
        """A word with the pod's paths and names replaced by those here."""
        places = {m["mountPath"]: str(self.folder / m["name"]) for m in self.spec["volumeMounts"]}
        places = {path: place for path, place in places.items() if path != "/dev/shm"}
        places |= {"$(POD_NAME)": "pod-0", "0.0.0.0": "127.0.0.1"}
        pattern = "|".join(re.escape(path) for path in sorted(places, key=len, reverse=True))
        return re.sub(pattern, lambda found: places[found[0]], word)

    def probe(self, kind: str) -> bool:
        """One try of an HTTP probe."""
        wanted = self.spec[kind]
        ports = {port["name"]: port["containerPort"] for port in self.spec["ports"]}
        url = f"http://127.0.0.1:{ports[wanted['httpGet']['port']]}{wanted['httpGet']['path']}"
        try:
            with urllib.request.urlopen(url, timeout=wanted["timeoutSeconds"]) as answer:
                return bool(200 <= answer.status < 400)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def terminate(self, log: IO[bytes], *, grace_s: float) -> None:
        """preStop, SIGTERM, and SIGKILL once the grace period, which preStop uses up too, is over.

        Blocks until the process is gone.
        """
        assert self.process is not None
        ends_at = time.monotonic() + grace_s
        hook = self.spawn(self.spec["lifecycle"]["preStop"]["exec"]["command"], log)
        hook.wait(timeout=grace_s)
        self.told_to_end_at = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=max(0.1, ends_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.was_killed = True
            self.process.kill()
            self.process.wait()
        self.ended_at = time.monotonic()


@dataclass
class LocalPod:
    """A pod's containers, started in its folder."""

    spec: dict[str, Any]
    folder: Path
    containers: dict[str, LocalContainer] = field(default_factory=dict)

    def start(self) -> None:
        """Makes the volumes and starts the containers."""
        for volume in self.spec["volumes"]:
            (self.folder / volume["name"]).mkdir(exist_ok=True)
        for spec in self.spec["containers"]:
            container = LocalContainer(spec, self.folder)
            self.containers[container.name] = container
            self.restart(container.name)

    def restart(self, name: str) -> None:
        """Starts a container again: its volumes are as it left them."""
        with self.log_path.open("ab") as log:
            self.containers[name].start(log)

    def kill(self, name: str) -> None:
        """Ends a container's first process at once, and with it the container."""
        process = self.containers[name].process
        assert process is not None
        process.kill()
        process.wait()

    def wait_ready(self) -> None:
        """Until the startup and readiness probes pass; fails after 40 s, or when a process ends."""
        for kind in ("startupProbe", "readinessProbe"):
            wait_until(
                functools.partial(self._passes, kind),
                limit_s=40.0,
                otherwise=self.log_path.read_text,
            )

    def _passes(self, kind: str) -> bool:
        for container in self.containers.values():
            process = container.process
            assert process is None or process.poll() is None, self.log_path.read_text()
        return self.containers["scheduler"].probe(kind)

    def terminate(self) -> None:
        """Ends all containers at once, each on its own, within the grace period."""
        grace_s = float(self.spec["terminationGracePeriodSeconds"])
        with self.log_path.open("ab") as log:
            threads = [
                threading.Thread(target=one.terminate, args=[log], kwargs={"grace_s": grace_s})
                for one in self.containers.values()
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def end(self) -> None:
        """Makes sure that nothing is left."""
        for container in self.containers.values():
            if container.process is not None and container.process.poll() is None:
                container.process.kill()
                container.process.wait()

    @property
    def log_path(self) -> Path:
        """What all containers wrote."""
        return self.folder / "log"
