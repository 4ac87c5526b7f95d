"""What the scripts of these tests share: checks that every rank runs in the same order, and a verdict at the end."""

import sys
import traceback


def run_checks(checks):
    """Runs all checks, shows what failed, and prints a last line when nothing did."""
    failed = []
    for check in checks:
        try:
            check()
        except Exception:
            failed.append(check.__name__)
            traceback.print_exc()
    if failed:
        sys.exit(f"did not hold: {', '.join(failed)}")
    print("all good", flush=True)


def refused(kind, text, call):
    """Whether `call` raises an error of `kind` whose message holds `text`."""
    try:
        call()
    except kind as error:
        if text not in str(error):
            raise AssertionError(f"{text!r} is not in the message: {error}") from error
    else:
        raise AssertionError(f"nothing was raised, and {kind.__name__} was expected")
