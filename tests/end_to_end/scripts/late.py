"""Worker 1 is late for every step. Worker 1 leaves at the step that `--leave` names."""

import argparse
import os
import time

import model

import parallax


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--leave", type=int)
    parser.add_argument("--asynchronous", action="store_true")
    flags = parser.parse_args()
    graph, train, loss = model.build(None, False)
    config = parallax.Config(seed=3)
    sess, num_workers, worker_id, _ = parallax.parallel_run(graph, None, not flags.asynchronous, config)
    # As drivers of 2019 do, it does not close the session.
    for step in range(flags.steps):
        batch = model.feeds(step, worker_id, num_workers)
        if worker_id == 1:
            time.sleep(0.2)
            if step == flags.leave:
                os._exit(5)
        sess.run([train, loss], {k.removesuffix(":0") + ":0": [v] for k, v in batch.items()})
        sess.run(graph.get_tensor_by_name("ids:0"), {"ids:0": [batch["ids"]]})  # trains nothing
    print("trained")


if __name__ == "__main__":
    main()
