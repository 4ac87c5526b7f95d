"""The published models at full size: plans for 8 hosts of 6 workers, and a training run on emulated hosts."""
