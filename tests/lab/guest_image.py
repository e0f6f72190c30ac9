"""The kernel and the first file system of a guest: Debian's packages, downloaded and unpacked once, never installed.

The guest's root is this machine's ``/``, read-only, under a layer in memory that goes with the guest.
"""

from __future__ import annotations

import fcntl
import gzip
import lzma
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from benchmarks.gguf_models import cache_directory

from . import require

KERNEL_PACKAGE = "linux-image-cloud-amd64"
# In the order in which they need each other; those that a kernel has built in are missing in its package.
MODULES = (
    *("virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci"),
    *("fuse", "virtiofs", "overlay"),
)
# Words of the kernel's command line that it does not know become variables of init.
INIT = """#!/bin/busybox sh
B=/bin/busybox
fail() { echo "guest: $1"; $B poweroff -f; }
$B mount -t proc proc /proc; $B mount -t sysfs sys /sys; $B mount -t devtmpfs dev /dev
for module in /modules/*.ko; do $B insmod $module; done
$B mount -t virtiofs -o ro host /host || fail "no virtiofs"
$B mount -t tmpfs tmpfs /layer; $B mkdir /layer/upper /layer/work
$B mount -t overlay overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work /root || fail "no overlay"
for place in proc sys dev; do $B mount --move /$place /root/$place; done
$B mount -t tmpfs tmpfs /root/run; $B mkdir -p /root/dev/shm; $B mount -t tmpfs tmpfs /root/dev/shm
$B mount -t cgroup2 cgroup2 /root/sys/fs/cgroup || fail "no cgroup v2"
export HOME=/root PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin
$B chroot /root $GUEST_PYTHON -S $GUEST_DRIVER
echo "guest: the driver ended with $?"
echo o > /root/proc/sysrq-trigger; $B sleep 60  # the power goes off a moment later; init must not end before
"""


class Image(NamedTuple):
    """What a guest starts from."""

    kernel: Path
    initrd: Path


def prepare() -> Image:
    """The image in the cache directory, made now if it is not there; a second process waits for the first."""
    directory = cache_directory().parent / "guest"
    directory.mkdir(parents=True, exist_ok=True)
    image = Image(directory / "vmlinuz", directory / "initrd.gz")
    stamp = directory / "init.txt"
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (image.kernel.exists() and image.initrd.exists() and stamp.exists() and stamp.read_text() == INIT):
            stamp.unlink(missing_ok=True)
            _make(directory, image)
            stamp.write_text(INIT)
    return image


def _make(directory: Path, image: Image) -> None:
    modules: dict[str, bytes] = {}
    for name, read in _members(_download(_kernel_package(), directory)):
        if name.name.startswith("vmlinuz-"):
            image.kernel.write_bytes(read())
        base = name.name.partition(".")[0]
        if base in MODULES and ".ko" in name.suffixes:
            modules[base] = lzma.decompress(read()) if name.suffix == ".xz" else read()
    files = {"init": INIT.encode()}
    for number, base in enumerate(MODULES):
        if base in modules:
            files[f"modules/{number}-{base}.ko"] = modules[base]
    busybox = [read() for name, read in _members(_download("busybox-static", directory)) if name.name == "busybox"]
    files["bin/busybox"] = busybox[0]
    folders = ("bin", "dev", "host", "layer", "modules", "proc", "root", "sys")
    image.initrd.write_bytes(gzip.compress(_archive(folders, files), 1))


def _kernel_package() -> str:
    """The package with the newest kernel for virtual machines, by its version's name."""
    done = subprocess.run(["apt-cache", "depends", KERNEL_PACKAGE], capture_output=True, text=True, check=False)
    found = re.search(r"Depends: (linux-image-\S+)", done.stdout)
    require(found, f"{KERNEL_PACKAGE} is not known here (apt-get update?)")
    assert found is not None
    return found[1]


def _download(package: str, directory: Path) -> Path:
    done = subprocess.run(
        ["apt-get", "-q", "download", package], cwd=directory, capture_output=True, text=True, check=False
    )
    require(done.returncode == 0, f"{package} cannot be downloaded: {done.stderr.strip()}")
    return max(directory.glob(f"{package}_*.deb"), key=lambda path: path.stat().st_mtime)


def _members(package: Path) -> Iterator[tuple[PurePosixPath, Callable[[], bytes]]]:
    """Path of each file in a package, with what reads it."""
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as archive,
    ):
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                yield PurePosixPath(member.name), file.read
    package.unlink()


def _archive(folders: tuple[str, ...], files: Mapping[str, bytes]) -> bytes:
    """The "newc" cpio archive that a kernel unpacks as its first file system."""
    entries = [*((name, 0o040755, b"") for name in folders), *((name, 0o100755, data) for name, data in files.items())]
    out = bytearray()
    for number, (name, mode, data) in enumerate((*entries, ("TRAILER!!!", 0, b"")), 1):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)
