"""An S3 server on this machine with a bucket of tar archives and pictures, until Ctrl-C or the end of its standard input's writer.

    serve.py [--images N] [--per-shard N] [--port PORT] [--odd]

Prints the variables that lead to it, as a shell takes them, and then serves. Needs Moto: $(../../scripts/python-env.sh moto) serve.py
"""

import argparse
import io
import logging
import pathlib
import sys
import tarfile
import threading

import boto3
from moto.server import ThreadedMotoServer

IMAGES = pathlib.Path(__file__).parent.parent / "digits" / "images"
BUCKET = "digits"
KEY = "example"
# Keys that have to be escaped on their way.
ODD = ["a b.png", "100%25.png", "1+1=2.png", "ü/日本.png", "[x]{y}?&#.png", "it's \"quoted\".png", "back\\slash.png", "a~b;c,d$!.png"]


def shard(images):
    """A tar archive with a sample for each image: `digit-0001.png`, and `digit-0001.txt` with the name of the file."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for image in images:
            for name, content in ((image.name, image.read_bytes()), (f"{image.stem}.txt", image.name.encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--images", type=int, default=300, help="how many of the 400 digits")
    arguments.add_argument("--per-shard", type=int, default=40, help="how many of them are in one archive")
    arguments.add_argument("--port", type=int, default=0, help="a free one by default")
    arguments.add_argument("--odd", action="store_true", help="put pictures with odd names under odd/, too")
    arguments = arguments.parse_args()

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=arguments.port, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"

    s3 = boto3.client(
        "s3", endpoint_url=address, aws_access_key_id=KEY, aws_secret_access_key=KEY, region_name="us-east-1"
    )
    s3.create_bucket(Bucket=BUCKET)
    images = sorted(IMAGES.glob("*.png"))[: arguments.images]
    shards = [images[at : at + arguments.per_shard] for at in range(0, len(images), arguments.per_shard)]
    for number, of_shard in enumerate(shards):
        s3.put_object(Bucket=BUCKET, Key=f"shards/digits-{number:03}.tar", Body=shard(of_shard))
    # What a console makes of a new folder.
    s3.put_object(Bucket=BUCKET, Key="pages/", Body=b"")
    for image in images:
        s3.put_object(Bucket=BUCKET, Key=f"pages/{image.name}", Body=image.read_bytes())
    if arguments.odd:
        for key in ODD:
            s3.put_object(Bucket=BUCKET, Key=f"odd/{key}", Body=images[0].read_bytes())

    print(f"export AWS_ENDPOINT_URL={address} AWS_ALLOW_HTTP=true AWS_ACCESS_KEY_ID={KEY} AWS_SECRET_ACCESS_KEY={KEY}")
    print(f"# {len(images)} pictures are in {len(shards)} archives in s3://{BUCKET}/shards/, and by themselves in s3://{BUCKET}/pages/")
    print("# Ctrl-C ends the server", flush=True)
    try:
        if sys.stdin.isatty():
            threading.Event().wait()
        else:
            sys.stdin.read()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
