"""Score a trajectory by an outcome reward model, where that is certain (scorer `orm`; UI-TARS-2, section 2.5.2)."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from threading import Lock

from flywheel.config import OrmSettings, Settings
from flywheel.rewards.outcome import CALIBRATION_FILE, Calibration, VerdictReader, build_verdict_context, find_orm
from flywheel.rewards.scorer import Need, Score, ScoringInput
from flywheel.utils.errors import BadInput
from flywheel.utils.files import sha256_file

SETTINGS = ("orm",)  # the blocks that it reads


class OutcomeScorer:
    """Score by the ORM in `settings.checkpoint`; see `Scorer`. Raises BadInput for a checkpoint that is missing or no
    ORM, or whose calibration is of other weights."""

    name = "orm"
    needs: frozenset[Need] = frozenset({"steps", "screens"})

    def __init__(self, settings: OrmSettings) -> None:
        folder = find_orm(Path(settings.checkpoint))
        self._folder, self._settings, self._lock = folder, settings, Lock()
        self._calibration = Calibration.read(folder)
        calibrated = sha256_file(folder / CALIBRATION_FILE)[:8]
        share = f"{settings.false_yes:g}/{settings.false_no:g}" if settings.abstains else "decides all"
        self.version = f"{self._calibration.name} {self._calibration.weights} calibration {calibrated} {share}"

    @cached_property
    def _reader(self) -> VerdictReader:
        """Load the network; the version is asked for without it."""
        return VerdictReader(self._folder, self._calibration.reads, self._settings.device)

    def score(self, case: ScoringInput) -> Score:
        """Score 1 where the task of `case` is certainly done and 0 where it is certainly not.

        It abstains between these, unless `settings.abstains` is off (then 1 from probability 0.5 on), and where the ORM
        was not calibrated for the domain; there is no value where the trajectory cannot be shown. The detail has the
        calibrated probability. Raises DataError where a screen is missing, ModelError as `VerdictReader`.
        """
        domain = case.task.domain
        known = self._calibration.domains.get(domain)
        if known is None:
            why = f"{self._calibration.name} is not calibrated for the domain {domain}"
            return Score(None, why, abstained=True)
        try:
            with self._lock:
                count = self._reader.encoder.count
                given = (case.task.instruction, case.steps, case.screens, count, self._calibration.reads)
                context = build_verdict_context(*given, case.trajectory.final_image_sha256)
                said = float(self._reader.probabilities([context])[0])
        except BadInput as error:  # of this trajectory, not of the settings
            return Score(None, str(error))
        probability = float(known.probability(said))
        detail = f"probability {probability:.3f}"
        if not self._settings.abstains:
            return Score(float(probability >= 0.5), detail)
        low, high = known.bands(self._settings.false_yes, self._settings.false_no)
        if said > high:
            return Score(1.0, f"certain: {detail}")
        if said < low:
            return Score(0.0, f"certain not: {detail}")
        return Score(None, f"to review: {detail}", abstained=True)


def open_scorer(settings: Settings) -> OutcomeScorer:
    """Open the scorer that the block `orm` of `settings` names. Raises as `OutcomeScorer`."""
    return OutcomeScorer(settings.orm)
