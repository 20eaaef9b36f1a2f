"""Block `operations`: how a flywheel runs that nobody watches."""

from __future__ import annotations

import re
import zoneinfo

from pydantic import Field, field_validator

from flywheel.settings.block import Block

_CRON = re.compile(r"@(hourly|daily|weekly|monthly)|(\S+ ){4}\S+")


class Operations(Block):
    """How a flywheel runs that nobody watches (`flywheel up`): when, how often after a failure, until when, and who is
    told. They are of the workspace: an edit applies at once, also to an iteration that was begun."""

    schedule: str = ""
    """When an iteration begins, or goes on, as cron has it: "0 1 * * *" is each night at one. Empty: not by the clock.
    Two never run at once: the second is skipped."""
    ingest_schedule: str = ""
    """When recordings are taken in, as cron has it ("0 * * * *" is hourly): the next iteration begins with them and
    waits after the stage `ingest`. Nothing happens while there are fewer new ones than operations.ingest_after (where
    that is 0, than recording.sessions_per_iteration)."""
    checkup_schedule: str = ""
    """When the newest model plays fresh tasks, as cron has it ("0 5 * * 0" is each Sunday at five):
    `flywheel checkup`, without a person. One that has played them is not asked again."""
    checkup_tasks: int = Field(100, ge=1)
    """Fresh tasks that it plays. There may be fewer, where worlds have no more."""
    timezone: str = "UTC"
    """Of the schedules, such as Europe/Berlin."""
    ingest_after: int = Field(0, ge=0)
    """New recordings that are enough to take them in at once, without a schedule. 0: no number is."""
    iterate_after: int = Field(0, ge=0)
    """Demonstrations that an iteration which waits has taken in, enough to go on with it at once. 0: no number is."""
    restarts: int = Field(3, ge=0)
    """How often a run whose process died is begun again without a person, each time a little later. What was finished
    is not done again."""
    stage_timeout_s: float = Field(14_400.0, gt=0)
    """Seconds that a stage may take. One that takes longer is stopped, and its run fails; what was finished is kept."""
    stop_not_promoted: int = Field(3, ge=0)
    """Iterations in a row whose model was not promoted after which none is begun without a person. 0: no number is."""
    stop_unverified: int = Field(2, ge=0)
    """Iterations in a row without a trajectory for SFT after which none is begun without a person. 0: no number is."""
    notify_command: str = ""
    """A command that is run, by the shell, where something happens that a person wants to know: an iteration is done,
    has failed or crashed, is stopped by a rule, or waits for a reviewer. It gets it as JSON on its input and in the
    variables FLYWHEEL_EVENT and FLYWHEEL_TEXT. Empty: none."""
    notify_block: str = ""
    """A notification block of Prefect's that is told the same, as `slack-webhook/night`. Empty: none."""

    @field_validator("schedule", "ingest_schedule", "checkup_schedule")
    @classmethod
    def _cron(cls, value: str) -> str:
        if value and not _CRON.fullmatch(value):
            raise ValueError(f'{value} is no cron schedule; "0 1 * * *" is each night at one')
        return value

    @field_validator("timezone")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            zoneinfo.ZoneInfo(value)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"there is no time zone {value}; Europe/Berlin is one") from None
        return value
