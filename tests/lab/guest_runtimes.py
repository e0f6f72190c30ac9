"""Containers inside a guest with cgroup v2: the same command under runc, crun and podman."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .guest_inside import PACKAGES, PERIOD_US, ROOT
else:
    from guest_inside import PACKAGES, PERIOD_US, ROOT

WORK = Path("/run/containers")
# What a container finds: printed as one line, last.
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import guest_inside
names = vars(guest_inside)
exec(guest_inside.WORKER, names)
names["load_pools"]()
lines = ["limits", "planned", "limited", "reported"]
print(guest_inside.json.dumps({line: names[line]() for line in lines}))
"""
COMMAND = [sys.executable, "-S", "-c", SCRIPT, f"{ROOT}/tests/lab"]
ENVIRON = {
    "PATH": os.environ["PATH"],
    "HOME": "/root",
    "GUEST_ROOT": ROOT,
    "PYTHONPATH": f"{ROOT}:{PACKAGES}",
}


def in_runc() -> Any:
    """Docker's way: a cgroup namespace."""
    return _oci("runc", ("pid", "ipc", "uts", "mount", "network", "cgroup"), quota=1.5)


def in_crun() -> Any:
    """Without a cgroup namespace, and with CPUs of its own."""
    return _oci("crun", ("pid", "ipc", "uts", "mount", "network"), quota=2.5, cpus="4-7")


def in_podman() -> Any:
    """Users' own flags."""
    places = ["--root", str(WORK / "podman"), "--runroot", str(WORK / "podman-run"), "--tmpdir", str(WORK / "tmp")]
    setting = ["--cgroup-manager", "cgroupfs", "--events-backend", "none", "--runtime", "crun"]
    options = [
        "--rm",
        "--network",
        "none",
        "--cpus",
        "3",
        "--cpuset-cpus",
        "0-5",
        "--security-opt",
        "seccomp=unconfined",
    ]
    environ = [word for name, value in ENVIRON.items() for word in ("--env", f"{name}={value}")]
    WORK.mkdir(exist_ok=True)
    return _run(["podman", *places, *setting, "run", *options, *environ, "--rootfs", "/:O", *COMMAND])


def _oci(runtime: str, namespaces: tuple[str, ...], *, quota: float, cpus: str = "") -> Any:
    """Run COMMAND by an OCI runtime, its root a layer over the guest's."""
    place = WORK / runtime
    for name in ("upper", "work", "merged", "bundle"):
        (place / name).mkdir(parents=True)
    layers = f"lowerdir=/,upperdir={place}/upper,workdir={place}/work"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", str(place / "merged")], check=True)
    cpu: dict[str, Any] = {"quota": round(quota * PERIOD_US), "period": PERIOD_US}
    if cpus:
        cpu["cpus"] = cpus
    kinds = {"/proc": "proc", "/dev": "tmpfs", "/dev/shm": "tmpfs", "/sys": "sysfs", "/sys/fs/cgroup": "cgroup"}
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": COMMAND,
            "cwd": "/",
            "env": [f"{name}={value}" for name, value in ENVIRON.items()],
        },
        "root": {"path": str(place / "merged"), "readonly": False},
        "mounts": [{"destination": path, "type": kind, "source": kind} for path, kind in kinds.items()],
        "linux": {
            "cgroupsPath": f"/machine/{runtime}",
            "resources": {"cpu": cpu},
            "namespaces": [{"type": kind} for kind in namespaces],
        },
    }
    (place / "bundle" / "config.json").write_text(json.dumps(config))
    return _run([runtime, "--root", str(place / "state"), "run", "-b", str(place / "bundle"), f"test-{runtime}"])


def _run(command: list[str]) -> Any:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
