"""Workers train the launcher's graph, whatever numbers their own run of the script has drawn."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.rotates
def test_layers_constants_and_functions_that_nobody_seeds_are_the_launchers_on_all_workers(start):
    done = start(SCRIPTS / "unseeded.py").finish()
    assert done.status == 0, done
    (launchers,) = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("built")]
    built, trained = zip(*(done.lines(rank) for rank in (0, 1)), strict=True)
    assert built[0].split()[0] == "built" and built[0] != f"built {launchers}", done
    found = [line.split() for line in trained]
    assert found[0][:4] == found[1][:4] and found[0][2] == launchers, done
    assert found[0][4] != found[1][4], done  # after the graph is built each worker draws its own
    assert done.stderr.count("differ between processes; all use the launcher's: ") == 1, done


def test_another_structure_is_refused_once_with_op_and_line(start):
    script = SCRIPTS / "other_graph.py"
    done = start("-m", "parallax.entry.cli", "run", script).finish()
    assert done.status == 1, done
    line = next(n for n, text in enumerate(script.read_text().splitlines(), 1) if "zeros_initializer" in text)
    text = (
        " built op 'outer/Initializer/zeros' differently from the launcher: its type and shape is "
        f"float32 (3, 4), and the launcher's float32 (3, 3) ({script}:{line})"
    )
    assert done.stderr.count("All processes of a job must build the same graph") == done.stderr.count(text) == 1, done
    assert "failed too" not in done.stderr and "] Traceback" not in done.stderr, done


@pytest.mark.slow
def test_workers_and_one_process_start_from_the_launchers_values(start):
    options = ("--workers", 2, "--steps", 1, "--feeds", f"{SCRIPTS / 'unseeded.py'}:feeds", "--fetch", "train")
    done = start("-m", "parallax.entry.cli", "verify", *options, SCRIPTS / "unseeded.py").finish()
    assert done.status == 0 and "2 workers and one process are equal after 1 steps" in done.stdout, done
