"""An S3 store on this machine, which asks for keys as a real one does: signatures are checked, and what a user may."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import httpx
from processes import PATIENCE_S

BUCKET = "flywheel-data"
_POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
# A process of its own: what it knows of users is the process's. It ends with the one that began it.
_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Store:
    """key, secret: of a user who may do anything in the store."""

    url: str
    key: str
    secret: str
    process: subprocess.Popen[str]

    @property
    def environment(self) -> dict[str, str]:
        """By which AWS's own programs, and DVC, know the store and the user."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def names(self) -> list[str]:
        """Of all that lies in the bucket."""
        return [one["Key"] for one in self.client("s3").list_objects_v2(Bucket=BUCKET).get("Contents", [])]

    def clear(self) -> None:
        for name in self.names():
            self.client("s3").delete_object(Bucket=BUCKET, Key=name)

    def client(self, service: str) -> Any:
        keys = {"aws_access_key_id": self.key, "aws_secret_access_key": self.secret}
        return boto3.client(service, endpoint_url=self.url, region_name="us-east-1", **keys)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


@contextmanager
def serving() -> Iterator[Store]:
    quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", _SERVER], text=True, **quiet) as process:
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        first = Store(url, "first", "anything", process)
        first.client("s3").create_bucket(Bucket=BUCKET)
        iam = first.client("iam")
        iam.create_user(UserName="flywheel")
        iam.put_user_policy(UserName="flywheel", PolicyName="all", PolicyDocument=json.dumps(_POLICY))
        made = iam.create_access_key(UserName="flywheel")["AccessKey"]
        # From now on keys count.
        httpx.post(f"{url}/moto-api/reset-auth", content="0", timeout=PATIENCE_S).raise_for_status()
        try:
            yield Store(url, made["AccessKeyId"], made["SecretAccessKey"], process)
        finally:
            process.kill()
