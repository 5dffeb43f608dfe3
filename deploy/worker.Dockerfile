# The worker: one supervisor and its ranks. From the root of the repository, for NVIDIA GPUs (torch as PyPI has it):
#   docker build -f deploy/worker.Dockerfile --target cuda -t octavo-worker:0.1.0 .
# For CPUs, with PyTorch's CPU index in PIP_EXTRA_INDEX_URL for a build that is some GB smaller:
#   docker build -f deploy/worker.Dockerfile --target cpu --build-arg PIP_EXTRA_INDEX_URL=... -t octavo-worker:0.1.0-cpu .
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
ARG PIP_EXTRA_INDEX_URL=
WORKDIR /opt/octavo/src
# The packages first: they change less often than the code, which the environment only points to.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY tools/install.sh tools/
RUN --mount=type=cache,target=/root/.cache/pip tools/install.sh /opt/octavo/venv worker
COPY client/octavo client/octavo
COPY worker_svc worker_svc
# at run time the file system is read-only
RUN /opt/octavo/venv/bin/python -m compileall -q client worker_svc

FROM python:${PYTHON}-slim-bookworm AS cpu
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="octavo-worker" \
      org.opencontainers.image.description="Octavo's worker service: one process per rank" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
# What is written lies in these two folders and /tmp, whatever the user: mount volumes there.
RUN groupadd --gid 10001 octavo \
    && useradd --uid 10001 --gid 10001 --home-dir /var/cache/octavo --shell /usr/sbin/nologin octavo \
    && install --directory --owner=10001 --group=10001 --mode=0770 /run/octavo /var/cache/octavo
COPY --from=build /opt/octavo /opt/octavo
ENV PATH=/opt/octavo/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/var/cache/octavo \
    XDG_CACHE_HOME=/var/cache/octavo
USER 10001:10001
WORKDIR /var/cache/octavo
# the scheduler knows whether its workers are well, and says so on /readyz
HEALTHCHECK NONE
ENTRYPOINT ["python", "-m", "worker_svc"]
CMD ["--run-dir=/run/octavo/replica", "--model=/var/cache/octavo/model"]

FROM cpu AS cuda
# Triton compiles the launchers of its kernels when they are first used. The driver comes with the container runtime.
USER 0:0
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
