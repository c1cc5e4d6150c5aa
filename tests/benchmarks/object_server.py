"""An object server in memory with S3's interface, to measure clients: one process, no checks.

    python tests/benchmarks/object_server.py [SECONDS]

The first line of its output is its address. It answers each request after SECONDS. A PUT of
`/refuse/SECONDS` makes it answer 503 SlowDown for that long. moto needs several milliseconds for a
request, and would be what is measured.
"""

import asyncio
import hashlib
import sys
import time
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 1000  # keys in one answer to a list request
STATUS = {
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    404: "Not Found",
    412: "Precondition Failed",
    416: "Range Not Satisfiable",
    503: "Slow Down",
}
LAST_MODIFIED = "Wed, 01 Jan 2025 00:00:00 GMT"

objects: dict[str, bytes] = {}
tags: dict[str, str] = {}
parts: dict[str, dict[int, bytes]] = {}
refused_until = 0.0

Answer = tuple[int, dict[str, str], bytes | memoryview]


def fail(status: int, code: str) -> Answer:
    """Return S3's answer to a request that failed."""
    text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return status, {"Content-Type": "application/xml"}, text.encode()


def store(key: str, data: bytes) -> Answer:
    """Store an object."""
    objects[key] = data
    tags[key] = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
    return 200, {"ETag": tags[key]}, b""


def list_keys(bucket: str, query: dict[str, list[str]]) -> Answer:
    """Answer a ListObjectsV2 request."""
    prefix = f"{bucket}/{query.get('prefix', [''])[0]}"
    after = query.get("continuation-token", query.get("start-after", [""]))[0]
    keys = sorted(k for k in objects if k.startswith(prefix) and k > after)
    rows = "".join(
        f"<Contents><Key>{key.partition('/')[2]}</Key><Size>{len(objects[key])}</Size>"
        "<LastModified>2025-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>{tags[key]}</ETag></Contents>"
        for key in keys[:PAGE]
    )
    more = len(keys) > PAGE
    token = f"<NextContinuationToken>{keys[PAGE - 1]}</NextContinuationToken>" if more else ""
    text = (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{bucket}</Name><KeyCount>{len(keys[:PAGE])}</KeyCount>"
        f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
    )
    return 200, {"Content-Type": "application/xml"}, text.encode()


def post(key: str, query: dict[str, list[str]]) -> Answer:
    """Begin or complete a multipart upload."""
    if "uploads" in query:
        upload = f"upload-{len(parts)}"
        parts[upload] = {}
        text = (
            f"<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>{key}</Key>"
            f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        )
        return 200, {"Content-Type": "application/xml"}, text.encode()
    whole = parts.pop(query["uploadId"][0])
    store(key, b"".join(whole[number] for number in sorted(whole)))
    text = (
        "<CompleteMultipartUploadResult><Location>x</Location><Bucket>b</Bucket>"
        f"<Key>{key}</Key><ETag>{tags[key]}</ETag></CompleteMultipartUploadResult>"
    )
    return 200, {"Content-Type": "application/xml"}, text.encode()


def get(key: str, headers: dict[str, str]) -> Answer:
    """Return an object or one range of its bytes."""
    if key not in objects:
        return fail(404, "NoSuchKey")
    data = memoryview(objects[key])
    known = {"ETag": tags[key], "Last-Modified": LAST_MODIFIED, "Accept-Ranges": "bytes"}
    if "range" not in headers:
        return 200, known, data
    first, _, last = headers["range"].removeprefix("bytes=").partition("-")
    if int(first) >= len(data):
        return fail(416, "InvalidRange")
    part = data[int(first) : int(last) + 1 if last else len(data)]
    span = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
    return 206, known | {"Content-Range": span}, part


def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
    """Answer one request."""
    global refused_until
    url = urlsplit(target)
    key = unquote(url.path).lstrip("/")
    query = parse_qs(url.query, keep_blank_values=True)
    if key.startswith("refuse/"):
        refused_until = time.monotonic() + float(key.partition("/")[2])
        return 200, {}, b""
    if time.monotonic() < refused_until:
        return fail(503, "SlowDown")
    if method == "GET" and "list-type" in query:
        return list_keys(key.rstrip("/"), query)
    if method in {"GET", "HEAD"}:
        return get(key, headers)
    if method == "PUT" and "uploadId" in query:
        number = int(query["partNumber"][0])
        parts[query["uploadId"][0]][number] = body
        return 200, {"ETag": f'"{number}"'}, b""
    if method == "PUT" and headers.get("if-none-match") == "*" and key in objects:
        return fail(412, "PreconditionFailed")
    if method == "PUT":
        return store(key, body)
    if method == "POST":
        return post(key, query)
    objects.pop(key, None)
    return 204, {}, b""


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Answer the requests of one connection."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.decode("latin-1").split("\r\n")
            method, target, _ = lines[0].split(" ")
            pairs = (line.partition(":") for line in lines[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            if headers.get("expect"):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if delay:
                await asyncio.sleep(delay)
            status, fields, data = answer(method, target, headers, body)
            fields["Content-Length"] = str(len(data))
            written = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            writer.write(f"HTTP/1.1 {status} {STATUS[status]}\r\n{written}\r\n".encode())
            if method != "HEAD":
                writer.write(data)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main(delay: float) -> None:
    """Serve until this process is ended."""
    server = await asyncio.start_server(
        lambda reader, writer: serve(reader, writer, delay), "127.0.0.1", 0, limit=2**20
    )
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0))
