# syntax=docker/dockerfile:1
# docker build -t meltpoint .
# docker run --rm --gpus all --shm-size 2g -v meltpoint-runs:/srv/meltpoint/runs meltpoint demo
# Ray keeps its objects in shared memory: give the container --shm-size. Every node of a cluster runs this one image,
# because Ray wants the same Python and the same Ray everywhere. A package index of your own, of which nothing stays in
# the image: docker build --secret id=pip,src=pip.conf. The root may be read-only: docker run --read-only --tmpfs /tmp
# --tmpfs /home/meltpoint:uid=10001. Without a docker engine: deploy/image.

ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS builder
# PEP 517: parts without a wheel (seqeval) are built apart from the rest by an older pip too.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_USE_PEP517=1
RUN python -m venv /opt/meltpoint
ENV PATH=/opt/meltpoint/bin:$PATH
WORKDIR /src
COPY constraints.txt ./
# The largest layer and the one that changes least. PyPI's wheel for Linux on x86-64 carries CUDA.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --constraint constraints.txt "torch==$(sed -n 's/^torch==//p' constraints.txt)"
COPY pyproject.toml README.md LICENSE __init__.py launch.py ./
COPY tasks ./tasks
COPY adapters ./adapters
COPY search_spaces ./search_spaces
COPY sweeps ./sweeps
COPY reports ./reports
# With `cluster`: a head without it has no dashboard, takes no jobs and answers no probe of Kubernetes.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --constraint constraints.txt ".[minilm,cluster,s3]"

FROM ${BASE}
LABEL org.opencontainers.image.title="meltpoint" \
    org.opencontainers.image.description="Hyperparameter search for adapting pretrained encoders" \
    org.opencontainers.image.version="0.2.0" \
    org.opencontainers.image.licenses="Apache-2.0 AND BSD-3-Clause"
# The caches and runs/ are made here, so that a fresh volume mounted over them belongs to the user.
RUN useradd --create-home --uid 10001 meltpoint \
    && mkdir -p /srv/meltpoint/runs /srv/huggingface \
    && chown -R meltpoint:meltpoint /srv/meltpoint /srv/huggingface
COPY --from=builder /opt/meltpoint /opt/meltpoint
ENV PATH=/opt/meltpoint/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/srv/huggingface \
    GIT_PYTHON_REFRESH=quiet \
    RAY_USAGE_STATS_ENABLED=0 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER meltpoint
WORKDIR /srv/meltpoint
VOLUME ["/srv/huggingface", "/srv/meltpoint/runs"]
# A sweep ends by itself; there is no service to ask after its health.
HEALTHCHECK NONE
ENTRYPOINT ["meltpoint"]
CMD ["--help"]
