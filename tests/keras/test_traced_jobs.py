"""Scripts with tables that no process makes whole: trained by a job, and planned in the memory of a small model."""

import pytest

from tests.end_to_end.conftest import CLI, start, warm_server, warm_workers  # noqa: F401
from tests.keras.test_fit_jobs import SCRIPTS, differences, found_in


@pytest.mark.rotates
def test_large_tables_stay_with_their_owners_and_in_files(start, tmp_path):  # noqa: F811
    script = SCRIPTS / "fit_large.py"
    running = start(*CLI, "run", "--workers", 2, script, tmp_path / "tables")
    expected = found_in(start(script, tmp_path, "plain", plain=True).finish())
    done = running.finish(240)
    parts = differences(found_in(done), expected)
    assert max(parts.values()) <= 1e-6, parts
    place = (
        f"Its value is in the checkpoint {tmp_path}/tables/model.ckpt-1 under the name 'sequential/table/embeddings'"
    )
    assert place in done.stdout, done


@pytest.mark.slow
def test_a_model_of_50_gigabytes_is_built_and_planned_in_one(start):  # noqa: F811
    done = start(*CLI, "plan", "--workers", 4, SCRIPTS / "plan_large.py", "adagrad", cold=True).finish()
    assert done.status == 0 and done.stdout.count("50000000x32") == 8, done
    peak = next(line for line in done.stdout.splitlines() if line.startswith("PEAK "))
    assert int(peak.split()[1]) < 1_000_000, peak
