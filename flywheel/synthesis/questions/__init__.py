"""Make questions that take several pages of a site to answer, with proved answers (`flywheel tasks questions`)."""

__all__ = ["build", "crawl"]
