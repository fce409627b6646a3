"""The machine that was measured on, and how much of it others took meanwhile.

Neighbours: `llama_cpp.py` puts both beside its times. A second program on the same cores slows the two compared ones
unequally (one spins while it waits, the other sleeps), so a table without the others' share would be hard to trust.
"""

import contextlib
import os
import platform
import resource
import time
from pathlib import Path


def describe(threads: int) -> dict[str, str | int | None]:
    """Processor, cores, threads used and system."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    system = f"{platform.system()} {platform.machine()}"
    return {"cpu": cpu, "cores": os.cpu_count(), "threads": threads, "system": system}


class Others:
    """Counts the CPU time of all processes but this one and its children, where the system tells (Linux)."""

    def __init__(self) -> None:
        self.before = self._now()

    def share(self) -> float:
        """The others' part of all cores' time since the start, 0 to 1; 0 where it cannot be known."""
        if self.before is None or (now := self._now()) is None:
            return 0.0
        busy, own, wall = (new - old for new, old in zip(now, self.before))
        return min(1.0, max(0.0, (busy - own) / (wall * (os.cpu_count() or 1))))

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Seconds that were busy, our own, and of the clock."""
        try:
            words = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        except OSError:
            return None
        user, nice, system, _, _, interrupt, soft, stolen = (int(word) for word in words[:8])
        busy = (user + nice + system + interrupt + soft + stolen) / os.sysconf("SC_CLK_TCK")
        usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return busy, sum(usage.ru_utime + usage.ru_stime for usage in usages), time.monotonic()


def wait_until_quiet(most: float, patience: int) -> None:
    """Waits until others take at most a part `most` of the processor, or `patience` seconds have passed."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        watch = Others()
        time.sleep(0.5)
        if watch.share() <= most:
            return
