# syntax=docker/dockerfile:1
# An MLflow server in the version of constraints.txt, with sign-in, PostgreSQL and S3. Built by docker-compose.yml, from
# the root of the checkout.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1
COPY constraints.txt /tmp/constraints.txt
RUN python -m venv /opt/mlflow \
    && /opt/mlflow/bin/pip install --constraint /tmp/constraints.txt "mlflow[auth]" psycopg2-binary boto3 \
    && useradd --create-home --uid 10001 mlflow
ENV PATH=/opt/mlflow/bin:$PATH
USER mlflow
WORKDIR /srv/mlflow
EXPOSE 5000
CMD ["mlflow", "server", "--help"]
