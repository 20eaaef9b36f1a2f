"""android: real phones and emulators, by ADB; its settings are `sandbox.kinds.android`."""

from __future__ import annotations

from flywheel.environments.kind import KINDS
from flywheel.phone.android_kind import AndroidKind

KINDS["android"] = AndroidKind()
