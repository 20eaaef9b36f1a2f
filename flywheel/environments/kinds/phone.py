"""phone: an emulated phone, touched, whose applications are the package's sites; its settings are
`sandbox.kinds.phone`."""

from __future__ import annotations

from flywheel.environments.kind import KINDS
from flywheel.phone.kind import PhoneKind

KINDS["phone"] = PhoneKind()
