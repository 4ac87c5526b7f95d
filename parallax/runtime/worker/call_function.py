"""Program that workers run in place of a script (`-m parallax.runtime.worker.call_function`): calls a function.

The function is in the job message.
"""

from __future__ import annotations

from parallax.runtime.worker.function_package import unpack_function
from parallax.runtime.worker.ranks import current_process_group

if __name__ == "__main__":
    unpack_function(current_process_group().parcel.function)()
