"""python3 limits_async.py PORT SECONDS: 64 callers on 10,000 keys, everything allowed; prints checks a second."""
import asyncio, random, sys, time
from limits import RateLimitItemPerMinute
from limits.aio.storage import RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter

port, seconds = int(sys.argv[1]), float(sys.argv[2])


async def main():
    limiter = FixedWindowRateLimiter(RedisStorage(f"async+redis://127.0.0.1:{port}", implementation="redispy"))
    item, end, count = RateLimitItemPerMinute(1_000_000), time.monotonic() + seconds, 0

    async def caller():
        nonlocal count
        while time.monotonic() < end:
            await limiter.hit(item, f"user:{random.randrange(10_000)}")
            count += 1

    await asyncio.gather(*(caller() for _ in range(64)))
    print(count / seconds)


asyncio.run(main())
