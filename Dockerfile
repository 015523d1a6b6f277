# Two images:
#
#   docker build -t warmshelf .                    the daemon and its command, as user 10001
#   docker build -t vllm-warmshelf --target worker \
#     --build-arg WORKER_BASE=vllm/vllm-openai:v0.32.0 .    a worker's image and the client
#
# All that the daemon's image downloads comes from the package index, and is what
# scripts/lock wrote down of it, by SHA-256. Neither image has torch added to it.

ARG BASE=python:3.11-slim
ARG WORKER_BASE=python:3.11-slim


# What installs is left behind with this stage.
FROM ${BASE} AS build

WORKDIR /src

COPY requirements/image.lock requirements/build.lock requirements/
RUN python3 -m venv /opt/warmshelf && python3 -m venv /opt/tools \
 && /opt/tools/bin/python -m pip install --no-cache-dir --only-binary :all: --require-hashes -r requirements/build.lock \
 && /opt/warmshelf/bin/python -m pip install --no-cache-dir --only-binary :all: --require-hashes -r requirements/image.lock

COPY pyproject.toml README.md LICENSE ./
COPY client client
COPY service service
RUN /opt/tools/bin/python -m pip wheel --no-cache-dir --no-deps --no-index --no-build-isolation --wheel-dir /wheels . \
 && /opt/warmshelf/bin/python -m pip install --no-cache-dir --no-deps --no-index /wheels/*.whl \
 && /opt/warmshelf/bin/python -m pip check \
 && /opt/warmshelf/bin/python -m pip uninstall --yes pip setuptools


# The client in a worker's image, which keeps its entry point, and those libraries
# that are new enough. Workers run as the daemon's user: its socket is for that one.
FROM ${WORKER_BASE} AS worker

ARG WORKER_USER=10001
ARG WORKER_EXTRAS=cli
LABEL org.opencontainers.image.title="warmshelf worker" \
      org.opencontainers.image.licenses="Apache-2.0"

# hadolint ignore=DL3002
USER root
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    python3 -m pip install --no-cache-dir "$(ls /wheels/*.whl)[${WORKER_EXTRAS}]"
USER ${WORKER_USER}


FROM ${BASE} AS daemon

ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="warmshelf" \
      org.opencontainers.image.description="Keeps model weights and LoRA adapters in host memory for inference workers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"

COPY --from=build /opt/warmshelf /opt/warmshelf

# 10001: no user of a node, so that files of an arena on a host are nobody else's.
RUN groupadd --gid 10001 warmshelf \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/warmshelf --shell /usr/sbin/nologin warmshelf \
 && install -d -m 0755 -o 10001 -g 10001 /run/warmshelf /var/lib/warmshelf

# The root file system may be read-only: /run/warmshelf, a memory file system, takes
# the arena and the socket, /var/lib/warmshelf the registry and what clients push.
ENV PATH=/opt/warmshelf/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    WARMSHELF_ADDRESS=unix:///run/warmshelf/api.sock \
    WARMSHELF_LISTEN=unix:///run/warmshelf/api.sock \
    WARMSHELF_ARENA=/run/warmshelf/arena \
    WARMSHELF_REGISTRY=sqlite:///var/lib/warmshelf/registry.sqlite \
    WARMSHELF_HTTP=0.0.0.0:9464
USER 10001:10001
WORKDIR /
EXPOSE 9464

# The page answers from a thread of its own, also while everything else is busy.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
  CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9464/livez', timeout=4)"]
ENTRYPOINT ["warmshelfd"]
