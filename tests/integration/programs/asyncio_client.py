# SPDX-License-Identifier: MIT
"""asyncio_client.py PORT: posts bodies over eight connections at once to a server that sends them back, and compares; prints what it
moved as JSON. It knows nothing of zc."""
import asyncio
import json
import sys

from address import ADDRESS
from bodies import SIZES, body

port = int(sys.argv[1])
moved = {"sent": 0, "received": 0, "verified": 0}


async def one(number):
    reader, writer = await asyncio.open_connection(ADDRESS, port)
    for size in SIZES[number % 2 :: 2]:
        expected = body(size)
        writer.write(b"POST /echo HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size)
        writer.write(expected)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert await reader.readexactly(size) == expected
        moved["sent"] += size
        moved["received"] += size
        moved["verified"] += 1
    writer.close()
    await writer.wait_closed()


async def main():
    await asyncio.gather(*[one(number) for number in range(8)])


asyncio.run(main())
json.dump(moved, sys.stdout)
