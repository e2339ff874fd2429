"""One measured run corrects later predictions: memory needed = baseline + ratio x simulated peak.

The baseline does not grow with the model: interpreter and libraries on the host, nothing on a device, whose allocator
counts tensors alone. The ratio covers all that grows and no graph shows: gradients that a framework keeps longer,
workspace, rounding, fragmentation. Without a baseline the ratio covers that too, and is too high for larger models.
"""

from __future__ import annotations

import os
from typing import Final, Literal, Optional

import msgspec

from planner.errors import PlanFileError, PlannerError
from planner.files import read_versioned, write_whole
from planner.memory import MemoryModel
from planner.units import MAX_BYTES, format_bytes, parse_bytes

FORMAT: Final = "planner-calibration"
VERSION: Final = 1

Kind = Literal["host", "device"]


class Prediction(msgspec.Struct, frozen=True):
    """The memory of a run as predicted from a graph or a plan.

    Args:
        graph, fingerprint: of the simulated graph.
        peak_bytes: simulated, in scope "total".
        arena_bytes: of a plan with offsets.
        alignment: of each storage, in bytes.
    """

    graph: str
    fingerprint: str
    peak_bytes: int
    arena_bytes: Optional[int]
    alignment: int


class Calibration(msgspec.Struct, frozen=True):
    """One measured run, beside what was predicted for it.

    Args:
        kind: "host" or "device": whose memory was measured.
        measured_bytes: the peak of the run.
        baseline_bytes: the part of the peak that does not depend on the model.
        predicted: the prediction; without one the file can only serve as a baseline.
        command: what ran.
    Raises:
        PlannerError: numbers that give no ratio.

    >>> seen = Calibration("host", 1300, 100, Prediction("g", "", 1000, None, 1), ("python", "train.py"))
    >>> seen.ratio, seen.needed_bytes(2000), seen.graph_bytes(2500)
    (1.2, 2500, 2000)
    """

    kind: Kind
    measured_bytes: int
    baseline_bytes: int
    predicted: Optional[Prediction]
    command: tuple[str, ...]

    def __post_init__(self) -> None:
        measured, baseline, predicted = self.measured_bytes, self.baseline_bytes, self.predicted
        if not 0 <= baseline <= MAX_BYTES or not 0 <= measured <= MAX_BYTES:
            raise PlannerError(f"a calibration of {measured} bytes with a baseline of {baseline} is out of range")
        if predicted is None:
            return
        if not 1 <= predicted.peak_bytes <= MAX_BYTES:
            fix = "name a graph that holds something"
            raise PlannerError(f"a predicted peak of {predicted.peak_bytes} bytes gives no ratio; {fix}")
        if not measured and not baseline:
            raise PlannerError("nothing was measured, for the command ended before the first sample; there is no ratio")
        if baseline >= measured:
            why = "so nothing is left for the model; measure what the command takes before it trains"
            raise PlannerError(f"the baseline of {baseline} bytes is not below the {measured} measured, {why}")

    @property
    def ratio(self) -> float:
        """Bytes measured above the baseline, for each byte predicted."""
        above, predicted = self._parts()
        return above / predicted

    def needed_bytes(self, peak_bytes: int) -> int:
        """Memory that a step of that simulated peak will take; rounded up."""
        above, predicted = self._parts()
        return self.baseline_bytes - (-above * peak_bytes // predicted)

    def graph_bytes(self, budget: int) -> int:
        """The largest simulated peak that `budget` bytes of memory hold; negative if not even the baseline fits."""
        above, predicted = self._parts()
        return (budget - self.baseline_bytes) * predicted // above

    def check(self, memory: MemoryModel) -> None:
        """Refuse a memory model whose peaks this ratio does not apply to.

        Raises:
            PlannerError: another scope or alignment, or there is no prediction.
        """
        self._parts()
        if memory.scope != "total":
            why = f"a calibration is of all memory, and scope {memory.scope!r} is a part of it"
            raise PlannerError(f"{why}; use scope 'total'")
        if self.predicted is not None and memory.alignment != self.predicted.alignment:
            why = f"the calibration was taken with alignment {self.predicted.alignment}, not {memory.alignment}"
            raise PlannerError(f"{why}; give the same alignment")

    def check_device(self, name: str) -> None:
        """Raise a PlannerError for a device's name where the host's memory was measured."""
        if self.kind != "device":
            why = f"the calibration is of host memory, and says nothing about device {name!r}"
            raise PlannerError(f"{why}; write a size, or measure a run on a device")

    def _parts(self) -> tuple[int, int]:
        """Measured bytes above the baseline, and predicted bytes; their quotient is the ratio."""
        if self.predicted is None:
            why = "the calibration holds no prediction, so there is no ratio to apply"
            raise PlannerError(f"{why}; measure it again with --against GRAPH")
        return self.measured_bytes - self.baseline_bytes, self.predicted.peak_bytes

    def __str__(self) -> str:
        above, predicted = self._parts()
        base = f" + baseline {format_bytes(self.baseline_bytes)}" if self.baseline_bytes else ""
        return f"{self.kind} memory = {above / predicted:.3f} x peak{base}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calibration file, whole or not at all; an OutputError where it cannot be written."""
        head = {"format": FORMAT, "version": VERSION, "ratio": None if self.predicted is None else self.ratio}
        write_whole(path, msgspec.json.encode({**head, **msgspec.structs.asdict(self)}))


def load_calibration(path: str | os.PathLike[str]) -> Calibration:
    """A calibration from its file; a PlanFileError if it is missing, another version, no calibration, or damaged."""
    head = read_versioned(path, kind="calibration", format=FORMAT, versions=(VERSION,), again="measure it again")
    try:
        found = msgspec.convert(head, Calibration)
        ratio = None if found.predicted is None else found.ratio
    except (msgspec.ValidationError, PlannerError, RecursionError) as error:
        raise PlanFileError(f"{str(path)!r} is damaged: {error}") from None
    if head.get("ratio") != ratio:
        said = head.get("ratio")
        raise PlanFileError(f"{str(path)!r} is damaged: its ratio is {said!r}, and its bytes give {ratio!r}")
    return found


def read_baseline(text: str) -> tuple[int, Kind | None]:
    """Bytes that do not depend on the model, from a size or a measurement's file; and the kind that the file names."""
    if os.path.exists(text):
        found = load_calibration(text)
        return found.measured_bytes, found.kind
    return parse_bytes(text, what="baseline"), None
