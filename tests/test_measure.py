"""`planner measure` against amounts a script is known to touch, the kernel, a fake torch, and brute force."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import msgspec
import networkx as nx
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner
from planner.errors import PlanFileError, PlannerError
from planner.footprint.calibration import Calibration, Prediction, load_calibration, read_baseline
from planner.footprint.estimate import estimate, largest_batch
from planner.footprint.measure import measure
from planner.footprint.process_tree import Tree
from planner.memory import MemoryModel

MB = 10**6
PSS = hasattr(psutil.Process().memory_full_info(), "pss")
needs_pss = pytest.mark.skipif(not PSS, reason="only Linux has PSS")
COMMAND = [sys.executable, "-m", "planner.cli"]
TOUCH = "import sys, time, numpy as np\nheld = np.ones(int(sys.argv[1]), dtype=np.uint8)\ntime.sleep(0.4)\n"


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def planner_measure(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; so the kernel's count starts low."""
    words = [*COMMAND, "measure", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, **options)  # type: ignore[call-overload, no-any-return]


def graph_of(path: Path, nbytes: int) -> Path:
    """Two values of which one is live at a time, beside an input: peak = nbytes."""
    graph = nx.DiGraph()
    graph.add_node("x", nbytes=nbytes - 1, kind="input")
    graph.add_node("y", nbytes=1)
    graph.add_edge("x", "y")
    path.write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    return path


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pid: int, seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while running(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not running(pid)


def test_bytes_that_a_script_touches_are_found_and_a_calibration_foretells_a_larger_run(tmp_path: Path) -> None:
    train = script(tmp_path, TOUCH)
    command = ("--", sys.executable, train)
    base, kept = tmp_path / "base.json", tmp_path / "calibration.json"
    assert planner_measure("-o", base, *command, 0).returncode == 0
    baseline, kind = read_baseline(str(base))
    assert kind == "host"
    graph = graph_of(tmp_path / "g.json", 100 * MB)
    done = planner_measure("--against", graph, "--baseline", base, "-o", kept, "--json", *command, 200 * MB)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["schema"], answer["version"]) == ("planner-measurement", 1)
    assert answer["predicted"]["peak_bytes"] == 100 * MB
    assert answer["measurement"]["host_bytes"] - baseline == pytest.approx(200 * MB, rel=0.04)
    assert answer["ratio"] == pytest.approx(2.0, rel=0.04)

    larger = estimate(graph_of(tmp_path / "larger.json", 200 * MB), calibration=kept)
    real = json.loads(planner_measure("--json", *command, 400 * MB).stdout)["measurement"]["host_bytes"]
    assert larger.needed_bytes == pytest.approx(real, rel=0.04)
    assert larger.peak_bytes == 200 * MB
    assert larger.fits(int(real * 1.05))
    assert not larger.fits(int(real * 0.95))


def test_a_spike_between_two_samples_is_in_the_count_of_the_kernel(tmp_path: Path) -> None:
    spike = "import time, numpy as np\ntime.sleep(1)\nheld = np.ones(300_000_000, dtype=np.uint8)\n"
    train = script(tmp_path, f"{spike}del held\ntime.sleep(0.2)\n")
    words = [*COMMAND, "measure", "--interval", "60", "--json", "--", sys.executable, str(train)]
    # A program inherits the peak of its parent: a shell between keeps that of the tests out.
    words = ["sh", "-c", '"$@"; exit $?', "sh", *words]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["measurement"]
    assert found["kernel_bytes"] > 300 * MB
    assert 300 * MB < found["host_bytes"] < 360 * MB


@needs_pss
def test_pages_that_a_fork_shares_count_once_and_pages_of_its_own_count(tmp_path: Path) -> None:
    forks = """
import os, sys, time
held = bytearray(b"1") * 150_000_000
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        own = bytearray(b"1") * int(sys.argv[1])
        time.sleep(1.0)
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
"""
    train = script(tmp_path, forks)
    shared = measure([sys.executable, str(train), "1"], interval_seconds=0.05)
    assert shared.processes == 4
    assert shared.method == "pss"
    assert 150 * MB <= shared.sampled_bytes < 230 * MB  # four RSS are 600 MB
    own = measure([sys.executable, str(train), "60000000"], interval_seconds=0.05)
    assert own.sampled_bytes - shared.sampled_bytes == pytest.approx(180 * MB, rel=0.05)


class Stub:
    """A process whose RSS is read once before its PSS, and once after."""

    def __init__(self, born: float, pss: int, *rss: int) -> None:
        self.born, self.pss, self.rss = born, pss, list(rss)

    def create_time(self) -> float:
        return self.born

    def memory_info(self) -> SimpleNamespace:
        return SimpleNamespace(rss=self.rss.pop(0))

    def memory_full_info(self) -> SimpleNamespace:
        return SimpleNamespace(pss=self.pss)


@needs_pss
def test_a_process_that_changes_while_a_sample_is_read_does_not_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    for processes, expected in (
        ((Stub(1, 60, 100, 100), Stub(2, 50, 90, 90)), 110),  # 80 are shared
        # the second was made by vfork, and became a small program
        ((Stub(1, 100, 100, 100), Stub(2, 100, 100, 3)), 103),
        # the second ended meanwhile: no more than the largest is sure
        ((Stub(1, 100, 100, 100), Stub(2, 50, 90, 0)), 100),
        ((Stub(1, 0, 0), Stub(2, 50, 90)), 90),  # one had ended before; only the other's RSS is known
    ):
        tree = Tree(os.getpid(), "")
        monkeypatch.setattr(tree, "alive", lambda processes=processes: set(processes))
        tree.sample()
        assert tree.sampled_bytes == expected


def test_a_command_that_fails_is_measured_reported_and_keeps_no_calibration(tmp_path: Path) -> None:
    kept = tmp_path / "c.json"
    for text, code, ended in (
        ("import sys; sys.exit(7)", 7, "exit code 7"),
        ("raise ValueError", 1, "exit code 1"),
        ("import os; os.kill(os.getpid(), 9)", 137, "SIGKILL"),
    ):
        done = planner_measure("-o", kept, "--", sys.executable, "-c", f"held = bytearray(b'1') * 50_000_000\n{text}")
        assert done.returncode == code
        assert f"error: the command ended with {ended}; nothing was saved" in done.stderr.splitlines()
        assert "Host peak" in done.stdout
        assert not kept.exists()


def test_output_passes_through_untouched_and_with_json_goes_to_standard_error(tmp_path: Path) -> None:
    text = "import sys\nsys.stdout.buffer.write(b'out \\xff\\n')\nsys.stderr.write('err\\n')\nprint(sys.stdin.read())\n"
    talk = ["--", sys.executable, str(script(tmp_path, text))]
    plain = subprocess.run([*COMMAND, "measure", *talk], capture_output=True, check=True, input=b"in")
    assert plain.stdout.startswith(b"out \xff\nin\n")
    assert plain.stderr == b"err\n"
    as_json = subprocess.run([*COMMAND, "measure", "--json", *talk], capture_output=True, check=True, input=b"in")
    assert json.loads(as_json.stdout)["measurement"]["exit_code"] == 0
    assert sorted(as_json.stderr.splitlines()) == [b"err", b"in", b"out \xff"]


REFUSED = [
    ("-- no-such-program", 2, "'no-such-program'"), ("-- ./train.py", 2, "write python ./train.py"),
    ("-- no-such-program --json", 2, "'no-such-program'"), ("", 2, "-- python train.py"),
    ("--interval 0 -- true", 2, "--interval"), ("--interval nan -- true", 2, "nan"),
    ("--batch 3 -- true", 2, "--batch"), ("--dim image=3 -- true", 2, "--dim"),
    ("--baseline 1MB -- true", 2, "--baseline"), ("--against resnet:50 -- true", 2, "--batch"),
    ("--against nothing.json -- true", 3, "nothing.json"), ("--against chain:8 --baseline much -- true", 2, "'much'"),
    ("--against chain:8 --kind device -- true", 2, "no device was reported"),
    ("--against chain:8 --baseline 1TB -- true", 2, "1000000000000"),
    ("-o missing/c.json -- true", 2, "missing/c.json"),
    ("--against chain:8 --baseline base.json --kind host -- true", 2, "measured on the device, and --kind is host"),
]  # fmt: skip


def test_what_cannot_be_measured_is_one_line(run, tmp_path: Path) -> None:
    script(tmp_path, "pass")
    Calibration("device", 300, 0, None, ("python",)).save(tmp_path / "base.json")
    for arguments, code, named in REFUSED:
        answer = run("measure", *arguments.split())
        assert (answer.code, len(answer.err.splitlines())) == (code, 1), arguments
        assert answer.err.startswith("error: ")
        assert named in answer.err
        assert not answer.out.startswith("{")


def test_without_psutil_the_extra_is_named() -> None:
    code = "import sys; sys.modules['psutil'] = None; sys.argv = ['planner', 'measure', '--', 'true']\n"
    code += "from planner.cli.main import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: measuring needs psutil: pip install 'sublinear-planner[measure]'\n"


def test_help_imports_no_psutil() -> None:
    code = "import sys; sys.argv = ['planner', 'measure', '--help']\nfrom planner.cli.main import main\n"
    code += "try: main()\nexcept SystemExit: pass\n"
    code += "print(sorted({'numpy', 'numba', 'networkx', 'psutil', 'msgspec', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
    assert "--against" in done.stdout


def test_a_command_too_short_to_be_seen_is_no_error() -> None:
    for _ in range(5):
        found = measure(["true"])
        assert (found.exit_code, found.left_running) == (0, 0)


def test_an_interval_out_of_bounds_is_refused() -> None:
    for interval in (0, 0.001, 61, float("nan")):
        with pytest.raises(PlannerError, match="interval"):
            measure(["true"], interval_seconds=interval)


FAMILY = """
import os, signal, subprocess, sys, time
sleeper = "import signal, time\\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\\n"
sleeper += "print('up', flush=True)\\ntime.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", sleeper], stdout=subprocess.PIPE, start_new_session={session})
child.stdout.readline()
print(os.getpid(), child.pid, flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    {then}
"""


def started(train: Path, **options: object) -> tuple[subprocess.Popen[str], list[int]]:
    """`planner measure` in a session of its own, and the ids that its script prints."""
    words = [*COMMAND, "measure", "--interval", "0.05", "--", sys.executable, str(train)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    return process, [int(word) for word in process.stdout.readline().split()]


@pytest.mark.parametrize("session", [False, True])  # a worker in a session of its own is found too
def test_an_interrupt_reaches_the_tree_and_leaves_no_orphan(tmp_path: Path, session: bool) -> None:
    process, pids = started(script(tmp_path, FAMILY.format(session=session, then="sys.exit(5)")))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 5  # what the script made of it
    assert "interrupted" in out
    assert "Host peak" in out
    assert "exit code 5" in err
    assert all(gone(pid) for pid in pids)


def test_the_third_interrupt_kills_what_does_not_listen(tmp_path: Path) -> None:
    deaf = "signal.signal(2, signal.SIG_IGN); time.sleep(60)"
    process, pids = started(script(tmp_path, FAMILY.format(session=False, then=deaf)))
    for _ in range(3):
        assert running(pids[0])
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 137
    assert "SIGKILL" in err
    assert "Host peak" in out
    assert all(gone(pid) for pid in pids)


def test_a_termination_is_passed_on(tmp_path: Path) -> None:
    process, pids = started(script(tmp_path, FAMILY.format(session=False, then="pass")))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert all(gone(pid) for pid in pids)


def on_terminal(words: list[str], keys: bytes = b"", after: bytes = b"") -> tuple[int, bytes]:
    """Run on a terminal of its own, and type `keys` once `after` was printed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(words[0], words)
    seen = b""
    while True:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        seen += chunk
        if keys and after in seen:
            os.write(terminal, keys)
            keys = b""
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen


def test_an_interrupt_from_the_keyboard_reaches_the_command_once(tmp_path: Path) -> None:
    counting = """
import signal, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
until = time.monotonic() + 1.5
while time.monotonic() < until:
    time.sleep(0.05)
print("interrupts:", len(seen))
"""
    words = [*COMMAND, "measure", "--", sys.executable, str(script(tmp_path, counting))]
    code, seen = on_terminal(words, keys=b"\x03", after=b"ready")
    assert code == 0
    assert b"interrupts: 1" in seen
    assert b"\x1b]0;" in seen  # progress is in the title, and nowhere else
    assert b"\x1b[2K" not in seen


def test_what_a_command_leaves_behind_is_counted_and_left_alone(tmp_path: Path) -> None:
    daemon = """
import subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
open(sys.argv[1], "w").write(str(left.pid))
"""
    pid_file = tmp_path / "pid"
    found = measure([sys.executable, str(script(tmp_path, daemon)), str(pid_file)])
    pid = int(pid_file.read_text())
    try:
        assert found.left_running == 1
        assert running(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_failure_of_the_measurement_leaves_no_orphan(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    sleeper = script(tmp_path, "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(60)\n")

    def broken(processes: int, highest_bytes: int, seconds: float) -> None:
        if pid_file.exists() and pid_file.read_text():
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        measure([sys.executable, str(sleeper), str(pid_file)], progress=broken)
    assert gone(int(pid_file.read_text()))


# Devices: what the hook finds in a torch that stands in for the real one.

TORCH = """
import os
open(os.environ["IMPORTED"], "a").write("torch ")
class Properties:
    name = "Pretend 1000"
    uuid = os.environ.get("UUID", "")
class cuda:
    used = True
    def is_initialized(): return cuda.used
    def device_count(): return 2
    def max_memory_allocated(index): return [700, 0][index]
    def max_memory_reserved(index): return [1024, 0][index]
    def get_device_properties(index): return Properties
"""


@pytest.fixture
def torch_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PYTHONPATH with a torch in it, which notes that it was imported."""
    folder = tmp_path / "path"
    folder.mkdir()
    script(folder, TORCH, "torch.py")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("IMPORTED", str(tmp_path / "imported"))
    return folder


def test_the_allocator_of_a_device_reports_when_the_script_used_it(tmp_path: Path, torch_path: Path) -> None:
    found = measure([sys.executable, str(script(tmp_path, "import torch\nraise SystemExit(3)"))])
    assert found.exit_code == 3
    assert [msgspec.structs.astuple(peak) for peak in found.devices] == [("cuda:0", "Pretend 1000", 700, 1024, 1)]
    assert found.peak() == ("device", 700)
    assert found.peak("host") == ("host", found.host_bytes)
    assert found.host_bytes > 700


def test_processes_on_one_device_add_up(tmp_path: Path, torch_path: Path) -> None:
    both = "import os, subprocess, sys\nfor uuid in sys.argv[1:]:\n"
    both += "    subprocess.run([sys.executable, '-c', 'import torch'], env={**os.environ, 'UUID': uuid}, check=True)\n"
    train = script(tmp_path, both)
    for uuids, expected in ((("a", "a"), [1400]), (("a", "b"), [700, 700]), (("", ""), [1400])):
        found = measure([sys.executable, str(train), *uuids])
        assert [device.allocated_bytes for device in found.devices] == expected
        assert found.peak() == ("device", max(expected))


def test_where_no_device_was_used_or_the_hook_fails_the_script_ends_as_it_would(
    tmp_path: Path, torch_path: Path
) -> None:
    torch = "import torch\n"
    for text in (
        "pass",
        f"{torch}torch.cuda.used = False",
        f"{torch}del torch.cuda",
        f"{torch}torch.cuda.device_count = 7",
    ):
        done = planner_measure("--json", "--", sys.executable, script(tmp_path, text))
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["measurement"]["devices"] == []


def test_the_hook_imports_nothing_that_the_script_does_not(tmp_path: Path, torch_path: Path) -> None:
    assert measure([sys.executable, "-c", "pass"]).devices == ()
    assert not (tmp_path / "imported").exists()


LOOK = """
import sys
site = getattr(sys.modules.get("sitecustomize"), "__file__", None)
print([entry for entry in sys.path], getattr(sys, "chained", None), site)
print(sorted(name for name in sys.modules if name.startswith(("torch", "json", "planner"))))
"""


@pytest.mark.parametrize(
    "own", [None, "import sys\nsys.chained = True\n", "raise RuntimeError('own')\n", "import nothing_of_that_name\n"]
)
def test_a_measured_python_looks_as_it_would_without(
    tmp_path: Path, torch_path: Path, capfd: pytest.CaptureFixture[str], own: str | None
) -> None:
    if own is not None:
        script(torch_path, own, "sitecustomize.py")
    look = [sys.executable, str(script(tmp_path, LOOK))]
    alone = subprocess.run(look, capture_output=True, text=True, check=True)
    assert measure(look).exit_code == 0
    measured = capfd.readouterr()
    assert (measured.out, measured.err) == (alone.stdout, alone.stderr)
    if own is not None:  # it did run
        assert ("True" if "chained" in own else "Error in sitecustomize") in measured.out + measured.err


# The calibration.

PREDICTED = Prediction("g", "f", 1000, None, 1)
HOST = Calibration("host", 1300, 100, PREDICTED, ("python", "train.py"))


SIZES = st.integers(0, 10**13)


@given(st.integers(1, 10**13), st.integers(0, 10**12), st.integers(1, 10**12), SIZES, SIZES)
def test_the_two_directions_of_a_calibration_are_inverse_and_exact(
    above: int, base: int, predicted: int, peak: int, budget: int
) -> None:
    found = Calibration("host", base + above, base, Prediction("g", "f", predicted, None, 1), ())
    exact = base + Fraction(above, predicted) * peak
    assert exact <= found.needed_bytes(peak) < exact + 1
    largest = found.graph_bytes(budget)
    if largest >= 0:
        assert found.needed_bytes(largest) <= budget < found.needed_bytes(largest + 1)
    else:
        assert budget < base


def test_a_calibration_file_is_whole_versioned_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    HOST.save(path)
    assert load_calibration(path) == HOST
    head = json.loads(path.read_text())
    assert (head["format"], head["version"], head["ratio"]) == ("planner-calibration", 1, 1.2)
    changes = [{"version": 2}, {"format": "planner-plan"}, {"ratio": 1.3}, {"ratio": None}, {"kind": "disk"}]
    changes += [{"measured_bytes": -1}, {"measured_bytes": 2**70}, {"baseline_bytes": 1300}]
    for change in (*changes, {"predicted": {}}, {"command": 3}):
        path.write_text(json.dumps({**head, **change}))
        with pytest.raises(PlanFileError, match=r"c\.json"):
            load_calibration(path)
    path.write_bytes(b"\xff")
    with pytest.raises(PlanFileError, match=r"c\.json"):
        load_calibration(path)


def test_a_calibration_is_refused_where_it_says_nothing(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "g.json", 1000)
    with pytest.raises(PlannerError, match="scope 'activations'"):
        estimate(graph, calibration=HOST, memory=MemoryModel("activations"))
    with pytest.raises(PlannerError, match="alignment 1, not 512"):
        estimate(graph, calibration=HOST, memory=MemoryModel(alignment=512))
    with pytest.raises(PlannerError, match="nothing was measured, for the command ended before the first sample"):
        msgspec.convert({**msgspec.to_builtins(HOST), "measured_bytes": 0, "baseline_bytes": 0}, Calibration)
    with pytest.raises(PlannerError, match="--against"):
        estimate(graph, calibration=msgspec.structs.replace(HOST, predicted=None))
    found = estimate(graph, calibration=HOST)
    for ask in (found.fits, found.advice, lambda device: largest_batch(lambda batch: graph, device, calibration=HOST)):
        with pytest.raises(PlannerError, match="host memory, and says nothing about device 'a100'"):
            ask("a100")
    assert estimate(graph, calibration=msgspec.structs.replace(HOST, kind="device")).fits("a100")


def test_an_estimate_with_a_calibration_goes_by_measured_memory(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "g.json", 1000)
    found = estimate(graph, calibration=HOST, memory=MemoryModel(reserve=50))
    assert (found.peak_bytes, found.needed_bytes) == (1000, 1350)  # 100 + 1.2 * 1000 + 50
    assert (found.fits(1350), found.fits(1349)) == (True, False)
    assert found.advice(1350).fits
    short = found.advice(1349)
    assert (short.fits, short.graph_budget) == (False, 999)  # (1349 - 50 - 100) / 1.2 = 999.2
    said = "1 B too much; 50 B of 1.32 KiB are reserved; by the calibration there is room for a peak of 999 B."
    assert str(short).splitlines()[0].endswith(said)
    assert "host memory = 1.200 x peak + baseline 100 B = 1.27 KiB\n" in str(found)
    bare = estimate(graph, memory=MemoryModel(reserve=50))
    assert (bare.needed_bytes, bare.calibration, bare.advice(2000).graph_budget) == (1050, None, None)


def test_the_largest_batch_goes_by_measured_memory() -> None:
    def build(batch: int) -> nx.DiGraph:
        return planner.zoo.mlp([64, 64, 64], batch=batch)

    budget = 400_000
    calibration = Calibration("host", 250_000, 50_000, Prediction("g", "f", 100_000, None, 1), ())
    fits = [batch for batch in range(1, 400) if 50_000 + 2 * estimate(build(batch)).peak_bytes <= budget]
    assert 0 < len(fits) < 399
    assert largest_batch(build, budget, calibration=calibration) == fits[-1]


def test_a_plan_is_compared_by_what_the_judge_finds_in_all_memory(tmp_path: Path) -> None:
    plan = planner.optimize(planner.zoo.mlp([8, 8, 8], batch=4), memory=MemoryModel("activations"))
    path = tmp_path / "plan.json"
    plan.save(path)
    done = planner_measure("--against", path, "--json", "--", sys.executable, "-c", "pass")
    predicted = json.loads(done.stdout)["predicted"]
    residents = sum(tensor.nbytes for op in plan.graph.ops if op.resident for tensor in op.outputs)
    assert predicted["peak_bytes"] == plan.report.plan.peak_bytes + residents
    assert predicted["arena_bytes"] == plan.report.plan.arena_bytes + residents
    for option in (("--batch", "3"), ("--alignment", "1")):
        refused = planner_measure("--against", path, *option, "--", "true")
        assert refused.returncode == 2
        assert f"{option[0]} is for a graph" in refused.stderr


def test_the_options_of_a_step_are_those_of_estimate() -> None:
    step = ("resnet:50", "--batch", "1", "--optimizer", "adam", "--json")
    answer = json.loads(planner_measure("--against", *step, "--", "true").stdout)
    row = json.loads(subprocess.run([*COMMAND, "estimate", *step], capture_output=True, check=True).stdout)["rows"][0]
    assert answer["predicted"]["peak_bytes"] == row["peak_bytes"]
    # the update holds 25,557,032 parameters (torchvision's count) in float32, their gradients and Adam's two states
    assert row["peak_bytes"] > 4 * 4 * 25_557_032


def test_a_calibration_is_applied_on_the_command_line_and_files_are_kept(run, tmp_path: Path) -> None:
    HOST.save(tmp_path / "c.json")
    before = (tmp_path / "c.json").read_bytes()
    assert run("measure", "-o", "c.json", "--", "true").code == 2
    assert (tmp_path / "c.json").read_bytes() == before
    words = ("estimate", graph_of(tmp_path / "g.json", 1000), "--calibration", "c.json")
    exact = run(*words, "--fits", "1299", "--json")
    assert (exact.code, exact.err.splitlines()[-1]) == (4, "1300")
    assert json.loads(exact.out)["rows"][0]["needed_bytes"] == 1300
    for option, value in (("--fits", "a100"), ("--scope", "activations"), ("--alignment", "512")):
        answer = run(*words, option, value)
        assert (answer.code, len(answer.err.splitlines())) == (2, 1)
