"""phone: an emulated phone, touched, whose applications are the package's sites; its settings are
`sandbox.kinds.phone`."""

from __future__ import annotations

from flywheel.envs.phone.phone_backend import PhoneBackend
from flywheel.envs.registry import BACKENDS

BACKENDS["phone"] = PhoneBackend()
