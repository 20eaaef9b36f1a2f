"""Expose typed settings, read from `params.yaml`, and the paths of a workspace.

Each class is one block of the file; each field's meaning is the string below it, which `params.yaml` has as a comment
and `flywheel settings` tells. Everything that takes effect has a field here: there are no hidden switches.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flywheel.config.params_file import (
        dump_commented_settings,
        dump_settings,
        is_settings_parameter,
        load_settings,
        parse_settings,
    )
    from flywheel.config.settings import (
        COORDINATE_SPACES,
        MAX_NUMBER,
        ClusterSettings,
        CtSettings,
        DomainName,
        EvaluationSettings,
        LanguageModelSettings,
        MergeSettings,
        OperationsSettings,
        OptimizerSettings,
        PolicySettings,
        PromotionSettings,
        RecordingSettings,
        RlSettings,
        RolloutSettings,
        RoutingSettings,
        SandboxSettings,
        Settings,
        SftSettings,
        SupervisedSettings,
        SynthesisSettings,
        TrainingSettings,
        VersioningSettings,
    )

__all__ = [
    "COORDINATE_SPACES",
    "MAX_NUMBER",
    "ClusterSettings",
    "CtSettings",
    "DomainName",
    "EvaluationSettings",
    "LanguageModelSettings",
    "MergeSettings",
    "OperationsSettings",
    "OptimizerSettings",
    "PolicySettings",
    "PromotionSettings",
    "RecordingSettings",
    "RlSettings",
    "RolloutSettings",
    "RoutingSettings",
    "SandboxSettings",
    "Settings",
    "SftSettings",
    "SupervisedSettings",
    "SynthesisSettings",
    "TrainingSettings",
    "VersioningSettings",
    "dump_commented_settings",
    "dump_settings",
    "is_settings_parameter",
    "load_settings",
    "parse_settings",
]
_OF_PARAMS_FILE = {
    "dump_commented_settings",
    "dump_settings",
    "is_settings_parameter",
    "load_settings",
    "parse_settings",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: who needs paths alone does not wait for pydantic."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flywheel.config import params_file, settings

    value = getattr(params_file if name in _OF_PARAMS_FILE else settings, name)
    globals()[name] = value
    return value
