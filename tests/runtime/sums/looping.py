"""What every worker of a job runs that never ends by itself: sums in shared memory, one after the other."""

from __future__ import annotations

import os
import sys

from parallax.runtime.calibrate.sum_runs import SumRuns
from parallax.runtime.worker.ranks import current_process_group


def main() -> None:
    members = current_process_group()
    members.start()
    run = SumRuns(members.teams, "parallax/looping", (members.size,)).runner("slices", 1 << 22)
    run()
    sys.stdout.write(f"rank {members.rank} is process {os.getpid()}\n")
    sys.stdout.flush()
    while True:
        run()


if __name__ == "__main__":
    main()
