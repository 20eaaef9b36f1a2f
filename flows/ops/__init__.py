"""Run Prefect's server, workers and deployments for a workspace, and the supervisor of `flywheel workspace up`."""

__all__ = ["deployments", "prefect_server", "supervisor", "ui", "worker"]
