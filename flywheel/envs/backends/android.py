"""android: real phones and emulators, by ADB; its settings are `sandbox.kinds.android`."""

from __future__ import annotations

from flywheel.envs.phone.android_backend import AndroidBackend
from flywheel.envs.registry import BACKENDS

BACKENDS["android"] = AndroidBackend()
