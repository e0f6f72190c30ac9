"""Native thread pools inside this process: what is loaded, at which count, and how it is lowered.

The functions here import the rest at first use: importing the package needs only ``native_already_loaded``, which
loads neither ctypes nor threadpoolctl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .maps import native_already_loaded as native_already_loaded

if TYPE_CHECKING:
    from ..notices import Notice
    from .records import PoolState

__all__ = ["describe", "lower_live", "native_already_loaded"]


def describe() -> tuple[PoolState, ...]:
    """The native pools loaded now, with the thread count each would use if called by the calling thread.

    Counts are read from the libraries, never assumed; nothing is changed, and no pool is started.
    """
    from .live import describe as read

    return read()


def lower_live(threads: int) -> tuple[Notice, ...]:
    """Lower every live pool that is above ``threads``, for good; what did not follow is named in the notices.

    Meant for the late import, where variables come too late: process-wide values (OpenBLAS, BLIS, FlexiBLAS, OpenCV,
    numexpr, pyarrow), the calling thread's own (OpenMP, MKL, numba) and, in the main thread, torch's default for
    later threads. Never raises a count. Raises InvalidThreadsError for ``threads`` below 1.
    """
    from .live import lower

    return lower(threads)
