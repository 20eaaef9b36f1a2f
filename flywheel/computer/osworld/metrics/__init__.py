"""OSWorld's metrics, by their names. They run where a checker runs, and read what an agent has left behind there.

It imports nothing of flywheel's but this folder, and what a metric needs beyond the standard library only where it is
used. What each compares follows OSWorld's description of it.
"""

from __future__ import annotations

from flywheel.computer.osworld.metrics import archives, jsons, tables, texts
from flywheel.computer.osworld.metrics.metric import Metric

METRICS: dict[str, Metric] = {**texts.METRICS, **jsons.METRICS, **tables.METRICS, **archives.METRICS}
