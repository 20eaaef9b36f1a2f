"""Typed settings, read from `params.yaml`. Invalid values and combinations are refused by name.

Each class is one block of the file; each field's meaning is the string below it, which `params.yaml` has as a comment
and `flywheel settings` tells. Everything that takes effect has a field here: there are no hidden switches.
"""

from flywheel.settings.block import LARGEST, Domain
from flywheel.settings.cluster import Cluster
from flywheel.settings.data import Recording, Rollout, Routing, Synthesis
from flywheel.settings.file import commented, dump, is_parameter, load, parse
from flywheel.settings.operations import Operations
from flywheel.settings.policy import SPACES, LanguageModel, Policy
from flywheel.settings.release import Evaluation, Merge, Promotion, Versioning
from flywheel.settings.rl import Rl
from flywheel.settings.sandbox import Sandbox
from flywheel.settings.training import Ct, Optimizer, Sft, Supervised, Training
from flywheel.settings.tree import Settings

__all__ = [
    "LARGEST",
    "SPACES",
    "Cluster",
    "Ct",
    "Domain",
    "Evaluation",
    "LanguageModel",
    "Merge",
    "Operations",
    "Optimizer",
    "Policy",
    "Promotion",
    "Recording",
    "Rl",
    "Rollout",
    "Routing",
    "Sandbox",
    "Settings",
    "Sft",
    "Supervised",
    "Synthesis",
    "Training",
    "Versioning",
    "commented",
    "dump",
    "is_parameter",
    "load",
    "parse",
]
