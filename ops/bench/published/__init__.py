"""The published models at full size: their plans on 8 hosts of 6 workers, and a training on emulated hosts."""
