# SPDX-License-Identifier: MIT
"""asyncio_server.py PORT: an HTTP server on asyncio's streams that answers GET PREFIX/SIZE with the body of that size and sends back
what is posted; under /sendfile by loop.sendfile. It knows nothing of zc."""
import asyncio
import sys
import tempfile

from address import ADDRESS
from bodies import body

port = int(sys.argv[1])


async def read_request(reader):
    line = await reader.readline()
    headers = {}
    while (header := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = header.partition(b":")
        headers[name.lower()] = value.strip()
    return line, headers, await reader.readexactly(int(headers.get(b"content-length", 0)))


async def send_file(writer, content):
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        await writer.drain()
        await asyncio.get_running_loop().sendfile(writer.transport, file, 0)


async def serve(reader, writer):
    headers = {}
    while headers.get(b"connection") != b"close":
        line, headers, content = await read_request(reader)
        if not line:
            break
        method, address, _ = line.split()
        if method == b"GET":
            content = body(int(address.rpartition(b"/")[2]))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content))
        if address.startswith(b"/sendfile") and content:
            await send_file(writer, content)
        else:
            writer.write(content)
            await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(serve, ADDRESS, port)
    await server.serve_forever()


asyncio.run(main())
