"""What must stay true of the whole source tree, read with `ast` from whatever files there are."""

import ast
import subprocess
import sys
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import parallax

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "parallax"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# What is in the package may import from the rows above its own, and from its own folder.
LAYERS = (
    ("base",),
    ("graph", "optimizers"),
    ("plans",),
    ("settings", "cluster"),
    ("report",),
    ("analysis", "transform"),
    ("runtime",),
    ("entry",),
    ("functions",),
    ("keras",),
)
# The same within a folder; what stands in the folder itself may import all of it.
INSIDE = {
    "analysis": (
        ("reading",),
        ("cut",),
        ("layouts",),
        ("propagation", "routes"),
        ("timing",),
        ("measuring",),
        ("search",),
        ("whatif",),
    ),
    "transform": (("building",), ("passes",)),
    "runtime": (
        ("supervisor",),
        ("launcher", "worker"),
        ("checkpoint", "trace"),
        ("guard", "measure", "memory_checkpoints"),
        ("calibrate", "check", "islands", "replan"),
        ("verify",),
        ("doctor",),
    ),
}

HEAVY = ("tensorflow", "horovod", "mpi4py")
# What reads, makes or shows a plan, and what launches and watches a job, loads none of them by being imported.
LOADS_NOTHING_HEAVY = (
    "parallax",
    "parallax.entry.cli",
    "parallax.base.errors",
    "parallax.cluster.*",
    "parallax.graph.ownership",
    "parallax.graph.spec",
    "parallax.optimizers",
    "parallax.plans.*",
    "parallax.report.*",
    "parallax.settings.*",
    "parallax.base.strict",
    "parallax.analysis.planner",
    "parallax.analysis.routes.*",
    "parallax.analysis.search.*",
    "parallax.analysis.timing.*",
    "parallax.analysis.whatif.*",
    "parallax.runtime.doctor.*",
    "parallax.runtime.launcher.*",
    "parallax.runtime.supervisor.*",
)
# How many modules of the package importing one may load.
MAY_LOAD = {"parallax.base.errors": 5, "parallax.runtime.supervisor.agent": 15}

MAY_READ_ENVIRONMENT = (
    "parallax.settings.environment",
    "parallax.runtime.supervisor.agent",
    "parallax.runtime.supervisor.control",
    "parallax.runtime.supervisor.preload",
    "parallax.runtime.launcher.mpirun",
    "parallax.runtime.worker.fork_server",
    "parallax.base.setup.command",
    "parallax.base.setup.libraries",
)

MAX_LINES = 400
MAX_MODULES = 25  # of a folder

# What a word may end in, so that two names are one to whoever looks for either.
ENDINGS = ("ings", "ing", "ages", "age", "ed", "es", "s")
SHORTEST_STEM = 3

# Words of its own that the code once had where the field has one.
RETIRED = (
    *("Way", "ToWorkers", "ToServers", "Together", "Meetings", "Alone", "Beside", "Held", "SpreadRows", "ServedRows"),
    *("Wishes", "ReplanWish", "MeasureWish", "TraceWish", "Decisions", "Members", "Keep", "Keeping", "Terms", "Parcel"),
    *("Meeting", "Trip", "Givers", "Asked", "Wanted", "Leg", "Judge", "Watch", "Afterwards", "Unit", "Fabric", "Line"),
    *("Measured", "Piece"),
)

IRREGULAR_PARTICIPLES = frozenset(
    "asked begun bent built chosen done drawn found given gone held kept known led left lent lost made meant met moot"
    " seen sent taken told written".split()
)
# Classes whose names are participles all the same: layouts, states and events, and what a reader of a plan sees.
PARTICIPLE_CLASSES = frozenset("Concatenated Preempted Replicated Sharded".split())
ENDING_ALIKE = frozenset("between even feed listen need open ragged seed shorten speed then token".split())


HOLDS_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


class Import(NamedTuple):
    line: int
    target: str  # the module, or module.name for `from module import name`
    at_import: bool  # runs when the module is imported


@cache
def imports(source, module, is_package=False):
    """All imports of a source text, those inside functions too; relative ones resolved."""
    found = []

    def visit(node, at_import):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
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
            if isinstance(child, HOLDS_STATEMENTS):
                visit(child, at_import)

    visit(ast.parse(source), True)
    return tuple(found)


def room(module):
    """The folders of a module within the package; of a module right in the package, its own name."""
    parts = module.split(".")[1:]
    return tuple(parts if MODULES[module].name == "__init__.py" or len(parts) == 1 else parts[:-1])


def rank(name, layers):
    """The number of the row that names a folder or module; None when no row does."""
    return next((number for number, row in enumerate(layers) if name in row), None)


def import_is_allowed(importer, imported):
    """Whether modules of one room may import those of another; both are tuples of folder names."""
    if importer == imported:
        return True
    if importer[0] != imported[0]:
        ranks = rank(importer[0], LAYERS), rank(imported[0], LAYERS)
        return None not in ranks and ranks[1] < ranks[0]
    inside = INSIDE.get(importer[0])
    if inside is None or len(importer) == 1:
        return True
    if len(imported) == 1:
        return False  # what stands in the folder itself is made of what is in its folders
    ranks = rank(importer[1], inside), rank(imported[1], inside)
    return importer[1] == imported[1] or (None not in ranks and ranks[1] < ranks[0])


def names_of(source):
    """The names that a module may have: those that it defines, assigns or imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return found


def module_of(target):
    """The module of the package that an import names, or that has the name which it names; None outside the package."""
    parts = target.split(".")
    for end in range(len(parts), 1, -1):
        if ".".join(parts[:end]) in MODULES:
            return ".".join(parts[:end])
    return None


def loaded_by(module):
    """All modules that importing one loads, those of other packages too, by their imports."""
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += loaded_first(name)
    return found


@cache
def loaded_first(name):
    """The modules that a module of the package imports itself, and its packages; empty for others."""
    if name not in MODULES:
        return ()
    path = MODULES[name]
    every = imports(path.read_text(encoding="utf-8"), name, path.name == "__init__.py")
    targets = [module_of(one.target) or one.target for one in every if one.at_import]
    return (*targets, *(".".join(name.split(".")[:end]) for end in range(1, name.count(".") + 1)))


def environment_reads(source):
    """The lines that name the environment of the process."""
    nodes = list(ast.walk(ast.parse(source)))
    names = ("environ", "environb", "getenv", "getenvb")
    modules = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in ("os", "posix")
    }
    lines = [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node.value) in modules
    ]
    for node in nodes:
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
        f"{_place(path, found.line)}: {'/'.join(room(module))} imports {found.target}"
        for module, path, found in _package_imports()
        if module != "parallax"
        and (imported := module_of(found.target))
        and not import_is_allowed(room(module), room(imported))
    ]
    assert wrong == []


def test_no_two_folders_import_each_other():
    arrows = {
        (room(module), room(imported))
        for module, _, found in _package_imports()
        if module != "parallax" and (imported := module_of(found.target)) and room(module) != room(imported)
    }
    later = {room_: {b for a, b in arrows if a == room_} for pair in arrows for room_ in pair}
    while free := [room_ for room_, needed in later.items() if not needed & later.keys()]:
        for room_ in free:
            del later[room_]
    assert later == {}


def test_every_folder_with_modules_is_a_package():
    folders = sorted({path.parent for path in MODULES.values()})
    # Without it, setuptools leaves the folder out of what it installs, and nothing says so.
    assert [
        f"{folder.relative_to(ROOT)} has no __init__.py" for folder in folders if not (folder / "__init__.py").is_file()
    ] == []


def test_planning_and_launching_load_neither_tensorflow_nor_mpi():
    modules = [module for module in MODULES if any(fnmatchcase(module, pattern) for pattern in LOADS_NOTHING_HEAVY)]
    wrong = {module: sorted({name.split(".")[0] for name in loaded_by(module)} & {*HEAVY}) for module in modules}
    assert {module: heavy for module, heavy in wrong.items() if heavy} == {}


def test_optimizers_for_graphs_load_no_keras():
    assert {"tensorflow", "keras"} & loaded_by("parallax.optimizers.of_train") == {"tensorflow"}
    assert "keras" in loaded_by("parallax.optimizers.of_keras")


@pytest.mark.parametrize("module", MAY_LOAD)
def test_a_process_loads_few_modules(module):
    code = (
        f"import sys, {module}; print(*[name for name in sys.modules if name.split('.')[0] in ('parallax', *{HEAVY})])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    loaded = set(done.stdout.split())
    assert loaded == {name for name in loaded_by(module) if name.split(".")[0] == "parallax"}, done.stderr
    assert len(loaded) <= MAY_LOAD[module]


def test_public_names_are_those_that_type_checkers_see():
    typed = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(MODULES["parallax"].read_text(encoding="utf-8")))
        if isinstance(node, ast.If)
        for statement in node.body
        for alias in getattr(statement, "names", [])
    }
    assert typed == {*parallax.__all__}
    assert [name for name in parallax.__all__ if getattr(parallax, name) is None] == []


def test_one_module_reads_the_environment():
    wrong = [
        _place(path, line)
        for module, path in MODULES.items()
        if module not in MAY_READ_ENVIRONMENT
        for line in environment_reads(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


def test_seconds_are_counted_by_a_clock_that_nobody_sets():
    wrong = [
        _place(path, node.lineno)
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("time", "now", "utcnow")
        if ast.unparse(node) in ("time.time", "datetime.now", "datetime.utcnow")
    ]
    assert wrong == []


def test_what_ops_imports_is_there():
    """mypy reads the package alone."""
    paths = [path for folder in ("parallax", "ops") for path in (ROOT / folder).rglob("*.py")]
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in paths}
    wanted = {
        (tuple(found.target.rsplit(".", 1)), _place(path, found.line))
        for module, path in modules.items()
        if module.startswith("ops.")
        for found in imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
        if found.target not in modules and found.target.rpartition(".")[0] in modules
    }
    known = {module: names_of(modules[module].read_text(encoding="utf-8")) for (module, _), _ in wanted}
    assert [f"{place}: {module} has no {name}" for (module, name), place in wanted if name not in known[module]] == []


def test_no_module_is_too_long():
    lines_by_module = {module: path.read_text(encoding="utf-8").count("\n") for module, path in MODULES.items()}
    assert {module: lines for module, lines in lines_by_module.items() if lines > MAX_LINES} == {}


def test_no_folder_has_too_many_modules():
    folders = [path.parent for path in MODULES.values() if path.name != "__init__.py"]
    counts = {str(folder.relative_to(ROOT)): folders.count(folder) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES} == {}


@cache
def stem(name):
    """A name without the endings of its words."""

    def without_ending(word):
        ending = next((e for e in ENDINGS if word.endswith(e) and len(word) - len(e) >= SHORTEST_STEM), "")
        bare = word.removesuffix(ending)
        doubled = len(bare) > SHORTEST_STEM and bare[-1] == bare[-2]
        return (bare[:-1] if doubled else bare).rstrip("e")

    return "_".join(without_ending(word) for word in name.split("_"))


def test_no_two_modules_differ_by_an_ending_alone():
    names = {path.stem for path in MODULES.values()} - {"__init__"}
    alike = {stem(name): sorted(other for other in names if stem(other) == stem(name)) for name in names}
    assert [twins for twins in sorted(alike.values()) if len(twins) > 1] == []


@pytest.mark.parametrize(
    ("names", "are_alike"),
    [
        (("restart", "restarting", "restarts"), True),
        (("store", "stored", "storage"), True),
        (("step", "steps"), True),
        (("run", "running"), True),
        (("choice", "choices"), True),
        (("write", "writing"), True),
        (("stall", "state"), False),
        (("ranks", "reach"), False),
        (("step", "step_time"), False),
    ],
)
def test_names_that_differ_by_an_ending_are_seen(names, are_alike):
    assert (len({stem(name) for name in names}) == 1) == are_alike


def test_no_two_classes_have_one_name_and_retired_words_name_nothing():
    defined = [
        (node.name, module)
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    places = {name: [module for found, module in defined if found == name] for name, _ in defined}
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}
    assert {name: modules for name, modules in places.items() if name in RETIRED} == {}


def is_participle(name):
    """Whether a name is a bare past participle, as far as its letters say."""
    word = name.strip("_")
    return word not in ENDING_ALIKE and (
        word in IRREGULAR_PARTICIPLES or (word.isalpha() and word.endswith(("ed", "en")))
    )


def has_participle_name(function):
    """Whether a function is called by a bare past participle; properties are values, and may be."""
    decorators = {ast.unparse(one).rpartition(".")[2] for one in function.decorator_list}
    is_property = not decorators.isdisjoint(("property", "cached_property"))
    return is_participle(function.name) and not is_property


def test_functions_are_called_by_verbs_and_not_by_participles():
    named_so = [
        f"{module}.{node.name}"
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and has_participle_name(node)
    ]
    assert named_so == []


def test_modules_are_called_by_nouns_or_verbs_and_not_by_participles():
    names = {module.rpartition(".")[2] for module in MODULES}
    assert [name for name in sorted(names) if is_participle(name)] == []


def test_classes_are_called_by_nouns_and_not_by_participles():
    names = {
        node.name
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    words = {name for name in names if name.strip("_").istitle()}
    assert {name for name in words if is_participle(name.lower())} == PARTICIPLE_CLASSES


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def _joined(): pass", True),
        ("def kept(): pass", True),
        ("def find_joined(): pass", False),
        ("def open(): pass", False),
        ("@property\ndef stored(self): pass", False),
    ],
)
def test_a_function_called_by_a_participle_is_seen(source, found):
    assert has_participle_name(ast.parse(source).body[0]) == found


def test_nothing_shipped_points_into_the_workshop():
    wrong = [
        str(path.relative_to(ROOT))
        for folder in ("parallax", "examples", "ops")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and b"shared/" in path.read_bytes()
    ]
    assert wrong == []


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
    assert list(imports(source, "parallax.runtime.x")) == [
        Import(2, "a.b", True),
        Import(3, "parallax.runtime.d", True),
        Import(4, "parallax.e.f", True),
        Import(6, "tensorflow", False),
        Import(8, "g", True),
        Import(12, "i", True),
        Import(14, "k", False),
    ]
    of_package = imports("from .m import n", "parallax.runtime", is_package=True)
    assert of_package == (Import(1, "parallax.runtime.m.n", True),)


def test_imports_that_point_back_or_across_are_refused():
    launcher, worker = ("runtime", "launcher"), ("runtime", "worker")
    reading, propagation = ("analysis", "reading"), ("analysis", "propagation")
    allowed = [
        (("plans",), ("base",)),
        (("report", "html"), ("report",)),
        (("entry",), launcher),
        (("analysis",), reading),
    ]
    allowed += [(propagation, reading), (worker, ("runtime", "supervisor")), (("transform", "passes"), ("graph",))]
    refused = [(("base",), ("plans",)), (reading, ("transform",)), (("transform",), reading), (reading, propagation)]
    refused += [
        (launcher, worker),
        (worker, launcher),
        (reading, ("analysis",)),
        (("runtime",), ("api",)),
        (("new",), worker),
    ]
    assert [pair for pair in allowed if not import_is_allowed(*pair)] == []
    assert [pair for pair in refused if import_is_allowed(*pair)] == []


@pytest.mark.parametrize(
    "source", ["import os\nos.environ['A']", "import os as o\no.getenv('A')", "import sys\nfrom os import environ as e"]
)
def test_reading_the_environment_is_seen(source):
    assert environment_reads(source) == [2]


def test_other_uses_of_os_are_no_reading_of_the_environment():
    assert environment_reads("import os\nos.cpu_count()\njob.environ") == []
