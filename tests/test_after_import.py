"""What happens around the import of a package that the project waits for."""

import gc
import sys

import pytest

from parallax.base.after_import import after_import


@pytest.fixture
def waited_for(tmp_path, monkeypatch):
    """Writes a package that is not imported yet."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def waited_for(name, text):
        (tmp_path / f"{name}.py").write_text(text)

    yield waited_for
    gc.unfreeze()


def test_no_cycles_are_searched_for_while_the_package_is_imported(waited_for):
    waited_for("makes_much", "import gc\nsearched = gc.isenabled()\n")
    called = []
    after_import("makes_much", lambda: called.append(gc.isenabled()))
    import makes_much

    assert (makes_much.searched, called, gc.isenabled()) == (False, [True], True)


def test_a_package_that_fails_leaves_the_search_on_and_nothing_is_called(waited_for):
    waited_for("fails_at_once", "raise ValueError('at once')\n")
    called = []
    after_import("fails_at_once", lambda: called.append(1))
    with pytest.raises(ValueError, match="at once"):
        import fails_at_once  # noqa: F401
    assert (called, gc.isenabled()) == ([], True)
