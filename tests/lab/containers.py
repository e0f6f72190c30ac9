"""Real containers whose root is this machine's: runc as one asks it to be, podman, Docker's daemon and gVisor.

Nothing is pulled from anywhere: each sees this machine's interpreter and libraries, and can change none of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from . import require
from .commands import ROOT, clean_environ

PERIOD_US = 100_000
OUTSIDE = 100_000  # who root is outside of a container whose users are mapped
MOUNTS = (
    ("/proc", "proc"),
    ("/dev", "tmpfs"),
    ("/dev/shm", "tmpfs"),  # joblib counts one CPU where there is none for its semaphores
    ("/sys", "sysfs"),
    ("/sys/fs/cgroup", "cgroup"),
)
PODMAN = ("--runtime", "runc", "run", "--rm", "--network", "none")
PODMAN_LIMITS = ("--ulimit", "nofile=20000:20000", "--ulimit", "nproc=4096:4096")  # its own are above some machines'


class Container(NamedTuple):
    """How a container of runc is made. ``refused`` are system calls that fail, with the error they fail with.

    ``masked`` are files that the runtime lays an empty one over; ``shared`` is whether the group of the container is
    seen as the host sees it, not as the root of a namespace. ``mapped`` is whether its users are other ones outside.
    """

    quota: float | None = None
    cpus: str | None = None
    shares: int | None = None
    user: int = 0
    read_only: bool = False
    mounts: tuple[tuple[str, str], ...] = MOUNTS
    masked: tuple[str, ...] = ()
    refused: Mapping[str, int] = MappingProxyType({})
    environ: Mapping[str, str] = MappingProxyType({})
    shared: bool = True
    mapped: bool = False


def without(*places: str) -> tuple[tuple[str, str], ...]:
    """The usual mounts but those at ``places``."""
    return tuple(mount for mount in MOUNTS if mount[0] not in places)


def run_container(command: Sequence[str], container: Container) -> str:
    """Run ``command`` in a container of runc whose root is a copy-on-write view of this machine's."""
    runc = _installed("runc")
    work = Path(tempfile.mkdtemp(prefix="ct-runc-"))
    layers, bundle = work / "layers", work / "bundle"
    layers.mkdir()
    bundle.mkdir()
    mounted: list[Path] = []
    try:
        _mount(mounted, layers, "-t", "tmpfs", "tmpfs")
        for name in ("upper", "work", "merged"):
            (layers / name).mkdir()
        root = layers / "merged"
        options = f"lowerdir=/,upperdir={layers}/upper,workdir={layers}/work"
        _mount(mounted, root, "-t", "overlay", "-o", options, "overlay")
        if container.user or container.mapped:
            _let_everybody_in(root)
            for path in (work, layers, root):
                path.chmod(0o755)
        (bundle / "config.json").write_text(json.dumps(_configure(work.name, root, command, container)))
        return _finish([runc, "--root", str(work / "state"), "run", "-b", str(bundle), work.name])
    finally:
        for path in reversed(mounted):
            # Others look around on this machine, too, and may be inside: it goes when they leave.
            subprocess.run(["umount", "--lazy", str(path)], check=True)
        shutil.rmtree(work)


def run_podman(command: Sequence[str], *flags: str) -> str:
    """Run ``command`` in a container of podman with the user's ``flags``."""
    podman = _installed("podman")
    _installed("runc")
    variables = [word for name, value in clean_environ().items() for word in ("--env", f"{name}={value}")]
    # ":O": the root is a copy-on-write view. Without it podman would work on this machine's own.
    return _finish([podman, *PODMAN, *PODMAN_LIMITS, *flags, *variables, "--rootfs", "/:O", *command])


def gvisor(command: Sequence[str]) -> list[str]:
    """``command`` in a sandbox of gVisor, whose kernel is a program: it shows no cgroups."""
    runsc = _installed("runsc")
    # As root of this machine, and with nothing but a read-only view of its files; ptrace needs no virtual machine.
    state = f"{tempfile.gettempdir()}/ct-runsc-{os.getpid()}"
    return [runsc, "--root", state, "--platform=ptrace", "--network=none", "--ignore-cgroups", "do", *command]


class Docker:
    """A daemon of our own, without a network, and an image of empty directories."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._client = [_installed("docker"), "--host", f"unix://{work}/docker.sock"]
        dockerd = _installed("dockerd")
        flags = ("--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs")
        places = (f"--data-root={work}/data", f"--exec-root={work}/run", f"--pidfile={work}/pid")
        self._log = work / "log"
        # In a network namespace of its own the daemon changes nothing of the machine's.
        command = ["unshare", "--net", dockerd, *flags, *places, "--host", f"unix://{work}/docker.sock"]
        with self._log.open("wb") as log:
            self._daemon = subprocess.Popen(
                [*command, "--cgroup-parent", f"/ct-docker-{os.getpid()}"], stdout=log, stderr=log
            )

    def wait(self) -> None:
        """Return once it answers; skips, with its last words, where this machine cannot run it."""
        from .waiting import wait_until

        def ready() -> bool:
            return self._daemon.poll() is not None or "API listen on" in self._log.read_text()

        wait_until(ready)
        lines = self._log.read_text().splitlines() or ["no output"]
        if self._daemon.poll() is not None:
            # No fault of what is tested, nor of what is installed: the kernel or the container we are in forbids it.
            pytest.skip(f"dockerd is installed, but this machine cannot run it: {lines[-1]}")
        image = self._work / "image"
        for name in ("proc", "sys", "dev", "tmp", "etc", "root"):
            (image / name).mkdir(parents=True)
        for link in ("bin", "sbin", "lib", "lib64"):
            if Path("/", link).is_symlink():
                (image / link).symlink_to(os.readlink(f"/{link}"))
        archive = subprocess.run(["tar", "-C", str(image), "-c", "."], check=True, capture_output=True).stdout
        subprocess.run([*self._client, "import", "-", "ct"], input=archive, check=True, capture_output=True)

    def run(self, command: Sequence[str], *flags: str) -> str:
        """Run ``command`` in a container with the user's ``flags``."""
        # Real directories of this machine, where the image has none: what the interpreter and the package are in.
        places = [*_places(), Path("/usr"), *(p for p in map(Path, ("/bin", "/lib", "/lib64")) if not p.is_symlink())]
        volumes = [word for place in places if place.exists() for word in ("--volume", f"{place}:{place}:ro")]
        variables = [word for name, value in clean_environ().items() for word in ("--env", f"{name}={value}")]
        flags = ("--rm", "--network", "none", *volumes, *variables, *flags)
        return _finish([*self._client, "run", *flags, "ct", *command])

    def stop(self) -> None:
        self._daemon.terminate()
        self._daemon.wait(30)
        for group in Path("/sys/fs/cgroup").glob(f"*/ct-docker-{os.getpid()}"):
            group.rmdir()


@contextmanager
def docker() -> Iterator[Docker]:
    """A daemon that runs until the end of the block."""
    _installed("dockerd")
    work = Path(tempfile.mkdtemp(prefix="ct-docker-"))
    daemon = Docker(work)
    try:
        daemon.wait()
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(work)


def _installed(program: str) -> str:
    found = shutil.which(program)
    require(found, f"{program} is not installed")
    require(os.geteuid() == 0, f"{program} needs root")
    assert found is not None
    return found


def _finish(command: Sequence[str]) -> str:
    done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _mount(mounted: list[Path], path: Path, *arguments: str) -> None:
    done = subprocess.run(["mount", *arguments, str(path)], capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"no overlay file system: {done.stderr.strip()}")
    mounted.append(path)


def _places() -> list[Path]:
    """The directories that the interpreter, its packages and ours are in, none inside of another."""
    paths = (sys.prefix, sys.base_prefix, sysconfig.get_paths()["purelib"], sysconfig.get_paths()["stdlib"], ROOT)
    places = {Path(path) for path in paths}
    return sorted(place for place in places if not places.intersection(place.parents))


def _let_everybody_in(root: Path) -> None:
    """Let a plain user reach the interpreter below ``root``, a view whose changes are nobody else's."""
    for place in _places():
        for directory in (place, *place.parents):
            inside = root / str(directory).lstrip("/")
            inside.chmod(inside.stat().st_mode | 0o055)


def _configure(name: str, root: Path, command: Sequence[str], container: Container) -> dict[str, Any]:
    """An OCI runtime configuration: its own namespaces, the cgroup mounts as Docker makes them."""
    cpu: dict[str, Any] = {}
    if container.quota is not None:
        cpu = {"quota": round(container.quota * PERIOD_US), "period": PERIOD_US}
    if container.cpus is not None:
        cpu["cpus"] = container.cpus
    if container.shares is not None:
        cpu["shares"] = container.shares
    environ = clean_environ(**container.environ)
    if container.user:
        environ.pop("HOME", None)
    namespaces = ["pid", "ipc", "uts", "mount", "network", *([] if container.shared else ["cgroup"])]
    linux: dict[str, Any] = {
        "cgroupsPath": f"/{name}",
        "resources": {"cpu": cpu},
        "namespaces": [{"type": kind} for kind in namespaces],
        "maskedPaths": [*container.masked],
    }
    if container.mapped:
        linux["namespaces"].append({"type": "user"})
        linux["uidMappings"] = linux["gidMappings"] = [{"containerID": 0, "hostID": OUTSIDE, "size": 65536}]
    if container.refused:
        rules = [
            {"names": [call], "action": "SCMP_ACT_ERRNO", "errnoRet": error}
            for call, error in container.refused.items()
        ]
        linux["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": container.user, "gid": container.user},
            "args": [*command],
            "cwd": "/",
            "env": [f"{key}={value}" for key, value in environ.items()],
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": container.read_only},
        "mounts": [{"destination": place, "type": kind, "source": kind} for place, kind in container.mounts],
        "linux": linux,
    }
