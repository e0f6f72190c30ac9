"""A real Linux with cgroup v2 and as many CPUs as asked for, emulated: one boot, and the answers of its driver.

The driver is a Python file that the guest runs as root, with this interpreter and this checkout; see ``guest_inside``.
Emulated CPUs take turns on one real one: counts, locks and liveness are true there, times are not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from . import require
from .commands import ROOT
from .guest_image import Image, prepare

QEMU = "qemu-system-x86_64"
VIRTIOFSD = Path("/usr/lib/qemu/virtiofsd")
KERNEL_WORDS = (
    "console=ttyS0 panic=-1 quiet mitigations=off nokaslr tsc=reliable audit=0 random.trust_cpu=on cgroup_no_v1=all"
)


class Boot(NamedTuple):
    """What a guest said: an answer a case (with its ``error``, if that went wrong), and its console.

    ``seconds`` is how long all took.
    """

    cases: dict[str, dict[str, Any]]
    console: str
    seconds: float

    def answer(self, case: str) -> Any:
        """What ``case`` returned in the guest."""
        assert case in self.cases, f"the guest never came to {case!r} in {self.seconds:.0f} s:\n{self.console[-3000:]}"
        found = self.cases[case]
        assert "error" not in found, f"{case} in the guest:\n{found['error']}"
        return found["answer"]


def boot(cpus: int, driver: str, *, deadline: float, megabytes: int = 2048) -> Boot:
    """Boot a guest that runs ``driver`` of this folder, and wait for its end; it is killed after ``deadline`` s."""
    require(os.geteuid() == 0, "sharing / with a guest needs root")
    require(shutil.which(QEMU), f"{QEMU} is not installed (Debian: qemu-system-x86)")
    require(VIRTIOFSD.exists(), f"{VIRTIOFSD} is not installed (Debian 12: qemu-system-common)")
    image = prepare()
    with tempfile.TemporaryDirectory(prefix="ct-guest-") as name:
        directory = Path(name)
        began = time.monotonic()
        share, socket = _share(directory)
        try:
            with open(directory / "console", "w") as console:
                machine = subprocess.Popen(
                    _command(cpus, megabytes, image, ROOT / "tests" / "lab" / driver, directory, socket),
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                )
                try:
                    machine.wait(deadline)
                except subprocess.TimeoutExpired:
                    console.write(f"\nguest: killed after {deadline:.0f} s\n")
                finally:
                    machine.kill()
                    machine.wait()
        finally:
            share.kill()
            share.wait()
        said = (directory / "console").read_text(errors="replace")
        return Boot(_read(directory / "answers"), said, time.monotonic() - began)


def _share(directory: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Offer this machine's / on a socket. The guest mounts it to read only: what it writes stays with it."""
    socket = directory / "share"
    with open(directory / "share.log", "wb") as log:
        # rlimit 0: it keeps ours, where raising it might be refused.
        options = ["-o", "source=/", "-o", "sandbox=chroot", "-o", "cache=always", "-o", "no_posix_lock"]
        process = subprocess.Popen(
            [str(VIRTIOFSD), "-f", f"--socket-path={socket}", *options, "--rlimit-nofile=0"], stdout=log, stderr=log
        )
    began = time.monotonic()
    while not socket.exists():
        if process.poll() is not None or time.monotonic() > began + 20:
            process.kill()
            process.wait()
            require(False, f"virtiofsd does not start: {(directory / 'share.log').read_text().strip()}")
        time.sleep(0.01)
    return process, socket


def _command(cpus: int, megabytes: int, image: Image, driver: Path, directory: Path, socket: Path) -> list[str]:
    words = {"GUEST_PYTHON": sys.executable, "GUEST_DRIVER": str(driver), "GUEST_ROOT": str(ROOT)}
    require(not any(" " in word for word in words.values()), "a kernel's command line takes no path with a blank")
    append = " ".join((KERNEL_WORDS, *(f"{name}={value}" for name, value in words.items())))
    memory = f"memory-backend-memfd,id=memory,size={megabytes}M,share=on"
    # One thread for all CPUs: with a thread for each, 64 of them hung.
    machine = ["-accel", "tcg,thread=single", "-cpu", "max", "-M", "pc,memory-backend=memory", "-object", memory]
    size = ["-m", str(megabytes), "-smp", str(cpus)]
    start = ["-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", append]
    share = ["-chardev", f"socket,id=share,path={socket}"]
    share += ["-device", "vhost-user-fs-pci,chardev=share,tag=host,queue-size=1024"]
    ports = ["-serial", "stdio", "-serial", f"file:{directory / 'answers'}"]
    rest = ["-nodefaults", "-display", "none", "-no-reboot", "-monitor", "none"]
    return [QEMU, *machine, *size, *start, *share, *rest, *ports]


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The JSON lines of the second serial port; one that a killed guest left unfinished counts for nothing."""
    if not path.exists():
        return {}
    lines = path.read_text(errors="replace").splitlines(keepends=True)
    found = [json.loads(line) for line in lines if line.endswith("\n") and line.strip()]
    return {answer["case"]: answer for answer in found}
