"""The command line of the benchmarks: `python -m ops.bench COMMAND`; without COMMAND it lists them."""

from __future__ import annotations

from ops.bench import planning
from ops.bench.checkpoint import command as checkpoint
from ops.bench.increments import command as increments
from ops.bench.islands import command as islands
from ops.bench.keras import command as keras
from ops.bench.lazy import command as lazy
from ops.bench.memory import command as memory
from ops.bench.predictions import command as predictions
from ops.bench.published import command as published
from ops.bench.race import command as race
from ops.bench.regret import command as regret
from ops.bench.replan import command as replan
from ops.bench.safety import command as safety
from ops.bench.start import command as start
from ops.bench.sums import command as sums
from ops.bench.transports import command as transports
from ops.bench.twin import command as twin
from parallax.settings.arguments import CommandParser


def main() -> None:
    """Runs the benchmark that the command line names."""
    parser = CommandParser(prog="python -m ops.bench", description="Runs benchmarks of Parallax.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    planning.add_command(commands)
    race.add_command(commands)
    predictions.add_command(commands)
    regret.add_command(commands)
    published.add_command(commands)
    safety.add_command(commands)
    keras.add_command(commands)
    start.add_command(commands)
    lazy.add_command(commands)
    memory.add_command(commands)
    checkpoint.add_command(commands)
    increments.add_command(commands)
    replan.add_command(commands)
    sums.add_command(commands)
    islands.add_command(commands)
    transports.add_command(commands)
    twin.add_command(commands)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
