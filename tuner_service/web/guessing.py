"""Guessing: how many keys that nobody has a client may try.

Counted is each unknown key that the database was asked for, by the address that the request came
from. Who has tried too many is told so before the database is asked again, so that a right guess
looks like a wrong one. Keys that were found once (``access.Keyring``) are not held up by what
others behind the same address do.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import ceil
from weakref import WeakValueDictionary

import limits
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from tuner_service.errors import TooManyWrongKeys

LONGEST = 64  # characters of an address that a proxy makes up
IPV6_NETWORK = 64  # bits: a client has all the addresses behind them


class Guesses:
    """The unknown keys that each address has tried of late."""

    def __init__(self, limit: str) -> None:
        self._rate = limits.parse(limit)
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait until no other key is looked for that this client has sent.

        What is sent at once would pass before the first of it is counted.

        Raises:
            TooManyWrongKeys: the client has tried too many (SV926).
        """
        sender = sender_of(client)
        async with self._turns.setdefault(sender, asyncio.Lock()):
            if not await self._limiter.test(self._rate, sender):
                stats = await self._limiter.get_window_stats(self._rate, sender)
                error = TooManyWrongKeys(limit=str(self._rate))
                error.retry_after_s = max(1, ceil(stats.reset_time - time.time()))
                raise error
            yield

    async def count(self, client: str) -> None:
        """Count a key that nobody has."""
        await self._limiter.hit(self._rate, sender_of(client))


def sender_of(client: str) -> str:
    """Return what an address is counted under: of IPv6 its network."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client[:LONGEST]
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), IPV6_NETWORK), strict=False))
