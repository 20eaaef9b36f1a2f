"""Make third-party web pages tasks: read their manifests, fetch their packages, and serve them to sessions."""

__all__ = ["file_server", "manifest", "packages", "server", "session"]
