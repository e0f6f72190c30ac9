"""Prints, as JSON, how many cores this library and others see; each column is None where a library is not installed."""

import json
import os
import sys

import cgroup_threads as ct

limits = ct.detect()
row = {
    "quota": limits.quota,
    "status": limits.status,
    "bound_by": limits.bound_by,
    "cpuset": None if limits.cpuset is None else sorted(limits.cpuset),
    "cgroup_threads": limits.usable(),
    "joblib": None,
    "proclimits": None,
    "os.cpu_count": os.cpu_count(),
}
try:
    import joblib

    row["joblib"] = joblib.cpu_count()
except ImportError:
    pass
try:
    import proclimits

    row["proclimits"] = proclimits.get_cpu_limit() or proclimits.get_machine_cpu_count()
except ImportError:
    pass
json.dump(row, sys.stdout)
