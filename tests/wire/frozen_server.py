"""A control server in a process of its own, for a test to freeze: prints its port, sends Welcome and waits."""

from __future__ import annotations

import asyncio

from tests.wire.loopback import Hall


async def main() -> None:
    async with Hall() as hall:
        print(hall.port, flush=True)
        await asyncio.Event().wait()


asyncio.run(main())
