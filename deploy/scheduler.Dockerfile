# The scheduler: frontends, core and their supervisor. Small: no torch. From the root of the repository:
#   docker build -f deploy/scheduler.Dockerfile -t octavo-scheduler:0.1.0 .
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
WORKDIR /opt/octavo/src
# The packages first: they change less often than the code, which the environment only points to.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY tools/install.sh tools/
RUN --mount=type=cache,target=/root/.cache/pip tools/install.sh /opt/octavo/venv scheduler,tracing
COPY client/octavo client/octavo
COPY scheduler_svc scheduler_svc
# at run time the file system is read-only
RUN /opt/octavo/venv/bin/python -m compileall -q client scheduler_svc

FROM python:${PYTHON}-slim-bookworm
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="octavo-scheduler" \
      org.opencontainers.image.description="Octavo's scheduler service: gRPC, scheduling, no tensors" \
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
    OCTAVO_CACHE=/var/cache/octavo/models \
    XDG_CACHE_HOME=/var/cache/octavo
USER 10001:10001
WORKDIR /var/cache/octavo
EXPOSE 50051 9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=6 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9464/healthz', timeout=4)"]
ENTRYPOINT ["python", "-m", "scheduler_svc"]
CMD ["--workers=external", "--run-dir=/run/octavo/replica", "--host=0.0.0.0", "--metrics-host=0.0.0.0"]
