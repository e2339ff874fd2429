"""How long a user waits: help, a warm plan, and a cold start with an empty kernel cache. CPU seconds of child processes.

    python -m bench.start_up [--repeat 5]
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time

import click

PLAN = ["optimize", "resnet:1001", "--batch", "32", "--budget", "7GB"]


def measure(arguments: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """(CPU, wall) seconds of one run of this interpreter."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def least(arguments: list[str], environment: dict[str, str], repeat: int) -> tuple[float, float]:
    """The least CPU and wall seconds of several runs: noise only ever adds."""
    runs = [measure(arguments, environment) for _ in range(repeat)]
    return min(cpu for cpu, _ in runs), min(wall for _, wall in runs)


@click.command()
@click.option("--repeat", default=5, show_default=True)
def main(repeat: int) -> None:
    """Print one Markdown table; ratios are to a bare interpreter measured in the same run."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        command = ["-m", "planner.cli"]
        cold = measure([*command, *PLAN], environment)
        rows = [
            ("bare interpreter", least(["-c", "pass"], environment, 4 * repeat)),
            ("planner --help", least([*command, "--help"], environment, 4 * repeat)),
            ("resnet:1001, 7 GB, warm", least([*command, *PLAN], environment, repeat)),
            ("resnet:1001, 7 GB, empty kernel cache", cold),
        ]
    bare_cpu = rows[0][1][0]
    print("| what | CPU s | wall s | CPU / bare interpreter |\n|---|---|---|---|")
    for name, (cpu, wall) in rows:
        print(f"| {name} | {cpu:.3f} | {wall:.3f} | {cpu / bare_cpu:.1f} |")


if __name__ == "__main__":
    main()
