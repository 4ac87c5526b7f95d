"""What must stay true of the whole source tree, read with `ast` from whatever files there are."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "parallax"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# A module may import from groups of a smaller number, and from its own group.
LAYER_BY_GROUP = {
    "errors": 0,
    "values": 1,
    "analysis": 2,
    "transform": 2,
    "views": 2,
    "runtime": 3,
    "api": 4,
    "cli": 4,
    "root": 4,
}
TOP_LAYER = 4  # its groups may import each other

HEAVY = ("tensorflow", "horovod", "mpi4py")
# Modules that own a heavy package and may import it at their top. Keep it short: a plan needs none of them.
MAY_IMPORT_HEAVY: tuple[str, ...] = (
    "parallax.runtime.worker.bfloat16",
    "parallax.runtime.replan.move",
    "parallax.runtime.replan.change_over",
    "parallax.runtime.checkpoint.hook",
    "parallax.runtime.worker.hooks",
    "parallax.runtime.measure.first_steps",
    "parallax.runtime.worker.profile",
    "parallax.runtime.worker.session",
    "parallax.runtime.trace.hook",
    "parallax.runtime.verify.claimed",
    "parallax.runtime.verify.single",
    "parallax.runtime.open_session",
)

MAY_READ_ENVIRONMENT = (
    "parallax.settings.environment",
    "parallax.runtime.supervisor.agent",
    "parallax.runtime.supervisor.control",
    "parallax.runtime.launcher.mpirun",
)

# What makes or checks a plan, or reads its inputs.
NEEDS_NO_TENSORFLOW = (
    "parallax.cluster.machines",
    "parallax.cluster.resource_file",
    "parallax.graph.spec",
    "parallax.plans.plan",
    "parallax.analysis.planner",
    "parallax.analysis.whatif.simulate",
    "parallax.report.diff",
    "parallax.report.html.page",
    "parallax.report.html.simulated",
)

MAX_LINES = 400


class Import(NamedTuple):
    line: int
    target: str  # the module, or module.name for `from module import name`
    at_import: bool  # runs when the module is imported


def imports(source, module, is_package=False):
    """All imports of a source text, those inside functions too; relative ones resolved."""
    found = []

    def visit(node, at_import):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            at_import = False
        if isinstance(node, ast.Import):
            found.extend(Import(node.lineno, alias.name, at_import) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            found.extend(Import(node.lineno, f"{base}.{alias.name}", at_import) for alias in node.names)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.body:
                visit(child, False)
            for child in node.orelse:
                visit(child, at_import)
            return
        for child in ast.iter_child_nodes(node):
            visit(child, at_import)

    visit(ast.parse(source), True)
    return found


def group(target, modules=MODULES):
    """The group that a module, or a name in a module, of parallax belongs to."""
    parts = target.split(".")
    if len(parts) > 1 and parts[1] in LAYER_BY_GROUP:
        return parts[1]
    path = modules.get(".".join(parts[:2]))
    if path is None or len(parts) == 1 or parts[1] == "__main__":
        return "root"  # the package itself: what it offers its users
    return f"{parts[1]}/ (unknown: give it a layer in LAYER_BY_GROUP)" if path.name == "__init__.py" else "values"


def import_is_allowed(importer, imported):
    if importer == imported:
        return True
    if importer not in LAYER_BY_GROUP or imported not in LAYER_BY_GROUP:
        return False
    if LAYER_BY_GROUP[importer] == LAYER_BY_GROUP[imported] == TOP_LAYER:
        return True
    return LAYER_BY_GROUP[imported] < LAYER_BY_GROUP[importer]


def environment_reads(source):
    """The lines that name the environment of the process."""
    tree = ast.parse(source)
    names = ("environ", "environb", "getenv", "getenvb")
    modules = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in ("os", "posix")
    }
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) in modules
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "posix"):
            lines += [node.lineno for alias in node.names if alias.name in names]
    return sorted(lines)


def _package_imports():
    for module, path in MODULES.items():
        for found in imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py"):
            yield module, path, found


def _place(path, line):
    return f"{path.relative_to(ROOT)}:{line}"


# --- the source tree ---


def test_imports_point_one_way():
    wrong = [
        f"{_place(path, found.line)}: {group(module)} imports {group(found.target)} ({found.target})"
        for module, path, found in _package_imports()
        if found.target.split(".")[0] == "parallax" and not import_is_allowed(group(module), group(found.target))
    ]
    assert wrong == []


def test_every_folder_with_modules_is_a_package():
    folders = sorted({path.parent for path in MODULES.values()})
    # Without it, setuptools leaves the folder out of what it installs, and nothing says so.
    assert [
        f"{folder.relative_to(ROOT)} has no __init__.py" for folder in folders if not (folder / "__init__.py").is_file()
    ] == []


def test_heavy_packages_are_imported_at_the_top_by_their_owners_only():
    wrong = [
        f"{_place(path, found.line)}: {found.target}"
        for module, path, found in _package_imports()
        if found.at_import and found.target.split(".")[0] in HEAVY and module not in MAY_IMPORT_HEAVY
    ]
    assert wrong == []


def test_one_module_reads_the_environment():
    wrong = [
        _place(path, line)
        for module, path in MODULES.items()
        if module not in MAY_READ_ENVIRONMENT
        for line in environment_reads(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


def test_no_module_is_too_long():
    lines_by_module = {module: path.read_text(encoding="utf-8").count("\n") for module, path in MODULES.items()}
    assert {module: lines for module, lines in lines_by_module.items() if lines > MAX_LINES} == {}


def test_nothing_shipped_points_into_the_workshop():
    wrong = [
        str(path.relative_to(ROOT))
        for folder in ("parallax", "examples", "ops")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and b"shared/" in path.read_bytes()
    ]
    assert wrong == []


@pytest.mark.parametrize("module", [module for module in NEEDS_NO_TENSORFLOW if module in MODULES])
def test_planning_needs_no_tensorflow(module):
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


# --- the checks themselves ---


def test_imports_are_found_wherever_they_stand():
    source = """
import a.b as c
from . import d
from ..e import f
if TYPE_CHECKING:
    import tensorflow
try:
    import g
except ImportError:
    pass
class H:
    import i
    def j(self):
        import k
"""
    assert imports(source, "parallax.runtime.x") == [
        Import(2, "a.b", True),
        Import(3, "parallax.runtime.d", True),
        Import(4, "parallax.e.f", True),
        Import(6, "tensorflow", False),
        Import(8, "g", True),
        Import(12, "i", True),
        Import(14, "k", False),
    ]
    assert imports("from .m import n", "parallax.runtime", is_package=True) == [Import(1, "parallax.runtime.m.n", True)]


def test_every_module_has_a_group():
    modules = {
        "parallax": Path("parallax/__init__.py"),
        "parallax.errors": Path("parallax/errors.py"),
        "parallax.plans.plan": Path("parallax/plans/plan.py"),
        "parallax.analysis": Path("parallax/analysis/__init__.py"),
        "parallax.new": Path("parallax/new/__init__.py"),
    }
    targets = ("parallax.errors.PlanError", "parallax.plans.plan", "parallax.analysis.planner", "parallax.parallel_run")
    assert [group(target, modules) for target in targets] == ["errors", "values", "analysis", "root"]
    assert "give it a layer" in group("parallax.new.x", modules)


def test_imports_that_point_back_or_across_are_refused():
    allowed = [("values", "errors"), ("values", "values"), ("transform", "values"), ("cli", "runtime"), ("cli", "api")]
    refused = [("errors", "values"), ("values", "analysis"), ("analysis", "transform"), ("transform", "analysis")]
    refused += [("transform", "runtime"), ("runtime", "api"), ("values", "root"), ("runtime", "new/ (unknown)")]
    assert [pair for pair in allowed if not import_is_allowed(*pair)] == []
    assert [pair for pair in refused if import_is_allowed(*pair)] == []


@pytest.mark.parametrize(
    "source", ["import os\nos.environ['A']", "import os as o\no.getenv('A')", "import sys\nfrom os import environ as e"]
)
def test_reading_the_environment_is_seen(source):
    assert environment_reads(source) == [2]


def test_other_uses_of_os_are_no_reading_of_the_environment():
    assert environment_reads("import os\nos.cpu_count()\njob.environ") == []
