# Two images: docker build --target party -t homo-dp-party . ; docker build --target aggregator -t homo-dp-aggregator .
# Both run as user 10001 and write only to /var/lib/homo_dp and /tmp: start them with a read-only root file system
# (deploy/compose.yaml, deploy/kubernetes). docs/deploy.md has the whole story.

FROM python:3.11-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE MANIFEST.in ./
COPY locks locks
COPY pipelines/install.py pipelines/install.py
COPY homo_dp homo_dp
COPY conf conf
COPY data data
# Packages are checked against the hashes of locks/. TORCH=cpu takes the build of torch for CPUs, 4 GB smaller, where an
# index has it, and the default build where not; pip reads the two others: a mirror, and a further index.
ARG TORCH=cpu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN python -m venv /opt/homo_dp \
    && PIP_NO_CACHE_DIR=1 /opt/homo_dp/bin/python pipelines/install.py --torch "$TORCH"

FROM python:3.11-slim-bookworm AS base
RUN groupadd --gid 10001 homo_dp \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/homo_dp --shell /usr/sbin/nologin homo_dp \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/homo_dp \
    && install -d -m 0755 /etc/homo_dp /srv/homo_dp
COPY --from=build /opt/homo_dp /opt/homo_dp
ENV PATH=/opt/homo_dp/bin:$PATH \
    HOME=/var/lib/homo_dp \
    MPLCONFIGDIR=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    OMP_NUM_THREADS=1
WORKDIR /var/lib/homo_dp
USER 10001:10001
VOLUME ["/var/lib/homo_dp"]
STOPSIGNAL SIGTERM

FROM base AS aggregator
HEALTHCHECK --interval=60s --timeout=20s --start-period=30s \
    CMD ["homo-dp", "status", "--config", "/etc/homo_dp/aggregator.yaml", "--quiet"]
ENTRYPOINT ["homo-dp", "aggregator", "--log-format", "json", "--config", "/etc/homo_dp/aggregator.yaml"]

FROM base AS party
HEALTHCHECK --interval=60s --timeout=20s --start-period=30s \
    CMD ["homo-dp", "status", "--config", "/etc/homo_dp/party.yaml", "--quiet"]
ENTRYPOINT ["homo-dp", "party", "--serve", "--log-format", "json", "--config", "/etc/homo_dp/party.yaml"]
