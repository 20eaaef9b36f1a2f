"""Name the commands and long options of earlier versions, each with the one of today."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# Words of earlier versions, after `flywheel` -> those of today. The longer one counts where two fit.
RENAMED_COMMANDS = {
    "catalog": "data catalog",
    "checkup": "model eval",
    "clean": "workspace reset",
    "diff": "iteration diff",
    "discard": "iteration drop",
    "down": "workspace down",
    "export": "data export",
    "guest": "env computer-server",
    "history": "iteration history",
    "import": "data import",
    "label": "review routes",
    "migrate": "workspace migrate",
    "osworld": "env osworld",
    "page": "env page",
    "pretrain": "model pretrain",
    "prune": "workspace gc",
    "quarantine": "data quarantine",
    "report": "iteration report",
    "reroute": "data reroute",
    "rollback": "iteration rollback",
    "sandbox": "env server",
    "sandbox serve": "env server manager",
    "serve": "model serve",
    "up": "workspace up",
    "verify": "workspace verify",
    "view": "data view",
}
# Command of today -> option of earlier versions -> what it is today.
_OF_PROMOTION = ("--iteration", "-k", "--promote", "--keep", "--reviewer", "--comment", "--workspace", "-w")
RENAMED_OPTIONS = {
    "review": {option: f"flywheel review promotion {option}" for option in _OF_PROMOTION},
    "review routes": {"--rest": "--remaining"},
    "iteration report": {"--picture": "--screenshot"},
    "model pretrain": {"--seeing": "--vision-steps", "--start": "--init-from"},
    "env page try": {"--screen": "--screenshot"},
    "env server manager": {"--silent": "--heartbeat-timeout"},
    "env server node": {"--film-mb": "--recording-mb"},
    "ui": {"--beside": "--compare-with"},
    "bench base": {"--n": "--pages"},
    "bench corrections": {"--measured": "--eval-tasks"},
    "bench explorer": {"--look": "--think-time"},
    "bench hybrid": {"--each": "--held-out"},
    "bench learner": {"--working-steps": "--history-n-images"},
    "bench rl": {"--each": "--held-out", "--at-once": "--parallel"},
    "bench rl_agreement": {"--each": "--tasks"},
    "bench streaming": {"--right": "--initial-success"},
}


def describe_renamed_command(words: Sequence[str]) -> str:
    """What a command of an earlier version is today, in words; empty for others. words: as typed after `flywheel`."""
    for count in (2, 1):
        old = " ".join(words[:count])
        if old in RENAMED_COMMANDS:
            return f"`flywheel {old}` is `flywheel {RENAMED_COMMANDS[old]}` now"
    return ""


def describe_renamed_option(command: str, typed: Iterable[str]) -> str:
    """What the first option of an earlier version among those typed is today, in words; empty where there is none.

    command: its words after `flywheel`. typed: words of the command line, such as `--each=40`.
    """
    known = RENAMED_OPTIONS.get(command, {})
    for word in typed:
        if (option := word.partition("=")[0]) in known:
            return f"{option} is `{known[option]}` now"
    return ""
