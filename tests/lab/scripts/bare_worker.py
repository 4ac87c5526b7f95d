"""A worker whose script needs no TensorFlow, and which imports none; all else is as in every worker."""

import parallax.runtime.worker.main as worker
from parallax.runtime.worker.script import run_script

worker._run = lambda words, _: run_script(words)
worker.main()
