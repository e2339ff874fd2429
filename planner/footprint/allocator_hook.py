"""A measured Python reports the peaks of its devices when it ends.

`planner.footprint.measure` copies this file, as `sitecustomize`, to the head of the child's PYTHONPATH.

Only PyTorch knows what its caching allocator handed out, and it tells only its own process. So each measured Python
writes a file at its end if the script imported torch and used a device; this module imports nothing else. An existing
`sitecustomize` still runs. The child may run another Python without this package: hence only the standard library, and
types in comments.
"""

import atexit
import os
import sys
from importlib import import_module

#: Names the folder for the reports, and so marks every process under one measurement.
FOLDER = "PLANNER_MEASURE_FOLDER"


def device_peaks(torch):
    # type: (object) -> list[dict[str, object]]
    """Peaks of PyTorch's caching allocator in this process, one entry for each device used."""
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return []
    found = []  # type: list[dict[str, object]]
    for index in range(cuda.device_count()):
        reserved_bytes = int(cuda.max_memory_reserved(index))
        if reserved_bytes:
            properties = cuda.get_device_properties(index)
            uuid, allocated_bytes = str(getattr(properties, "uuid", "")), int(cuda.max_memory_allocated(index))
            peak = {"device": "cuda:" + str(index), "name": str(properties.name), "uuid": uuid}
            found.append(dict(peak, allocated_bytes=allocated_bytes, reserved_bytes=reserved_bytes))
    return found


def write_report(folder):
    # type: (str) -> None
    """Write this process's peaks into the folder; an error here must not disturb the end of the script."""
    try:
        devices = device_peaks(sys.modules.get("torch"))
        if devices:
            import json

            path = os.path.join(folder, str(os.getpid()) + ".json")
            with open(path + ".part", "w") as file:
                json.dump({"devices": devices}, file)
            os.rename(path + ".part", path)
    except Exception:
        pass


if __name__ == "sitecustomize":
    if os.environ.get(FOLDER):
        atexit.register(write_report, os.environ[FOLDER])
    # Import the user's own one, next on the path; without one this is an ImportError, which `site` expects.
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(os.path.abspath(__file__))]
    this = sys.modules.pop("sitecustomize")
    import_module("sitecustomize")
