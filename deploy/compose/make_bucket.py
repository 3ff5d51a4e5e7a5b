"""The bucket of MLflow's files, made where it is missing: `python make_bucket.py NAME`, with MLflow's S3 variables."""

from __future__ import annotations

import os
import sys

import boto3


def main() -> None:
    """Make the bucket that the command line names, unless it is there."""
    store = boto3.client("s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"])
    name = sys.argv[1]
    if name in [bucket["Name"] for bucket in store.list_buckets()["Buckets"]]:
        print(f"bucket {name}: there")
        return
    store.create_bucket(Bucket=name)
    print(f"bucket {name}: made")


if __name__ == "__main__":
    main()
