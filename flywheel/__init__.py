"""A data flywheel for GUI agents."""

import os

# Threads of OpenMP that wait for work must sleep, not spin: browsers and other processes share the cores, and a
# process of two spinning threads beside another was measured 30 times slower. Read when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
