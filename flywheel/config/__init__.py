"""Expose the typed settings of `params.yaml`; the modules of this package hold a workspace's paths and locks too.

Each class is one block of the file. The string below a field is its description: a comment in `params.yaml`, shown by
`flywheel settings`. Everything that takes effect has a field here: there are no hidden switches.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flywheel.config.params_file import *  # noqa: F403
    from flywheel.config.settings import *  # noqa: F403
_FUNCTIONS = {"load_settings", "parse_settings", "dump_settings", "dump_commented_settings", "is_settings_parameter"}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a caller that needs only paths does not wait for pydantic."""
    if name in _FUNCTIONS:
        from flywheel.config import params_file as module
    elif name[0].isupper():  # a class or a constant; modules and functions begin with a small letter
        from flywheel.config import settings as module
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(module, name))
