"""python3 throttled_async.py PORT SECONDS: 64 callers on 10,000 keys, everything allowed; prints checks a second."""
import asyncio, random, sys, time
from throttled.asyncio import RateLimiterType, Throttled, rate_limiter, store

port, seconds = int(sys.argv[1]), float(sys.argv[2])


async def main():
    throttled = Throttled(
        using=RateLimiterType.GCRA.value,
        quota=rate_limiter.per_min(1_000_000, burst=1_000_000),
        store=store.RedisStore(server=f"redis://127.0.0.1:{port}/0"),
    )
    end, count = time.monotonic() + seconds, 0

    async def caller():
        nonlocal count
        while time.monotonic() < end:
            await throttled.limit(f"user:{random.randrange(10_000)}")
            count += 1

    await asyncio.gather(*(caller() for _ in range(64)))
    print(count / seconds)


asyncio.run(main())
