# flywheel for workers of Prefect that begin containers (docs/prefect.md, "A pool of your own"):
#
#   docker build -t flywheel --build-arg UID=$(id -u) .
#
# The workspace is no part of it: it is mounted at its own path, and belongs to the user UID.
FROM python:3.11.13-slim-bookworm

# Those that scripts/setup would install: it finds them here.
RUN apt-get update \
    && apt-get install -y --no-install-recommends git chromium-headless-shell fonts-dejavu-core fonts-liberation libatomic1 \
    && rm -rf /var/lib/apt/lists/*

# What pip and uv would keep is of no use in an image.
ENV PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1
WORKDIR /opt/flywheel
COPY . .
RUN scripts/setup run && .venv/bin/python -m compileall -q flywheel flows tasks

ARG UID=1000
RUN useradd --uid "$UID" --create-home flywheel
USER flywheel
ENV PATH=/opt/flywheel/.venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1
WORKDIR /home/flywheel
