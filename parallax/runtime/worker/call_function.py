"""What workers run in the place of a script, by `-m parallax.runtime.worker.call_function`: the message's function."""

from __future__ import annotations

from parallax.runtime.worker.function_package import unpacked_function
from parallax.runtime.worker.ranks import current_process_group

if __name__ == "__main__":
    unpacked_function(current_process_group().parcel.function)()
