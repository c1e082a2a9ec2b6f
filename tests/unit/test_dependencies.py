"""Which room may know which: the direction of dependencies, read from the import statements."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "twinbus"

ROOTS = {"errors", "limits", "clock"}
# Room (or root module) → what of twinbus it may import.  `cli` and `testing` may import everything.
MAY_IMPORT = {
    "errors": set[str](),
    "limits": set[str](),
    "clock": set[str](),
    "json_lines": {"errors"},
    "metered": set[str](),
    "config": ROOTS | {"entities"},
    "emulator_config": ROOTS | {"entities", "json_lines", "config"},
    "certificates": ROOTS | {"config"},
    "launch": ROOTS | {"client"},
    "amqp": ROOTS,
    "entities": ROOTS,
    "storage": ROOTS | {"entities", "metered"},
    "message": ROOTS | {"amqp", "entities"},
    "links": ROOTS | {"entities"},
    "broker": ROOTS | {"storage", "links", "entities", "metered"},
    "gateway": ROOTS | {"links", "entities", "metered", "config"},
    "server": ROOTS
    | {
        "gateway",
        "links",
        "message",
        "amqp",
        "entities",
        "config",
        "costs",
        "metered",
        "page",
        "telemetry",
    },
    # Logs and secrets know nobody; the traced link is one of the gateway's.
    "telemetry": ROOTS | {"links", "gateway", "entities"},
    "client": ROOTS | {"amqp", "message", "entities", "metered"},
    "costs": ROOTS | {"metered"},
    "page": set[str](),
    # Of entities, the hash of keys; of message, names on the wire and a key's section.  Otherwise
    # Azure's SDK.
    "pairing": ROOTS | {"entities", "message"},
    # Of pairing, the rules of rewriting; of entities, the partitions.
    "pipeline": ROOTS | {"client", "amqp", "message", "entities", "metered", "costs", "pairing"},
    # A user of everything that users have.
    "drill": ROOTS | {"client", "metered", "costs", "pairing", "pipeline", "launch"},
}
# The one place that puts the parts together sees all of them.
OUTERMOST = {"__init__", "__main__", "cli", "testing", "host"}
EXCEPTIONS = {
    "server/http/operations/namespaces.py": {"emulator_config"}  # how entities are declared
}

# Inside the two largest rooms: sub-room (or module) → what beside it it may import of the room.
# A module may import what stands to the left of its own line, and nothing to the right.
INSIDE = {
    "gateway": [
        {"counting"},
        {"directory", "access"},
        {"partitions", "faults", "throttling", "transactions"},
        {"transfer", "health"},
        {"gateway"},
        {"namespaces"},
    ],
    "server": [
        {"port"},
        {"amqp", "http"},
        {"http/atom", "http/rest", "http/operations"},
        {"http/page"},
    ],
}

# What users import by name; of these, other rooms of ours use some modules, too.
PUBLIC_DOORS = {
    "pairing": {
        "errors",
        "events",
        "held",
        "options",
        "primary",
        "producer_keys",
        "rests",
        "rules",
        "syphon",
        "value_types",
    },
    "pairing/aio": {"_steady", "_syphon"},
    "pairing/blocking": {"_posting", "_refusals"},
    "pipeline": {"options"},
    "pipeline/bus": {"line", "pool", "protocol"},
    "testing": set[str](),
}
# Names that others import from one room: twenty, as a rule.  Those that are a vocabulary of their
# own (commands, facts, performatives, operations on a socket) have more, and may not get any.
NAMES_MAX = 21
VOCABULARIES = {
    "amqp": 84,
    "client": 33,
    "entities": 154,
    "links/remote": 52,
    "message": 58,
    "pairing": 36,
    "pipeline/jobs": 42,
}

# Said by the package itself; anybody may say it.
WHO_WE_ARE = {"PRODUCT_NAME", "__version__", "build"}

# The pure rooms: time, disk, network and chance enter by argument.
PURE = {"amqp", "entities"}
IMPURE_MODULES = {
    "asyncio",
    "io",
    "logging",
    "mmap",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
}
FILE_MODULES = {"os", "io", "mmap", "fcntl", "pathlib", "shutil", "tempfile"}
MAY_USE_ASYNCIO = {"server", "host", "client", "cli", "testing"}
# The broker's shells: everything else in that room is told when something is due.
ASYNCIO_SHELLS = {
    "broker/commit_ring.py",
    "broker/shell.py",
    "gateway/counting/meter_writer.py",
    "gateway/faults/acting.py",
    "gateway/health/usage.py",
    "gateway/namespaces/change_lock.py",
    "gateway/namespaces/entity_locks.py",
    "gateway/namespaces/lifetime.py",
    "links/request.py",
}

# Paired namespaces are decided in pure modules, which are told the time and handed their chance;
# the blocking shell has threads, the async one a loop, neither has both.
PAIRING_PURE_NEVER = IMPURE_MODULES - {"logging", "random"}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def named(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0].removesuffix(".py")


def imports(path: Path) -> list[tuple[int, str, list[str]]]:
    """Line, module and imported names of every import, wherever it stands in the file."""
    found: list[tuple[int, str, list[str]]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: line {node.lineno}: relative import"
            assert node.module is not None
            found.append((node.lineno, node.module, [alias.name for alias in node.names]))
    return found


def twinbus_targets(module: str, names: list[str]) -> set[str]:
    """The rooms that an import of ours leads to."""
    parts = module.split(".")
    if parts[0] != "twinbus":
        return set()
    return {parts[1]} if len(parts) > 1 else set(names) - WHO_WE_ARE


Complaints = Iterator[tuple[Path, int, str]]  # file, line, what is wrong there


def check(complaints: Complaints) -> None:
    """Nobody complains; whoever does is told with file and line."""
    told = [f"{named(path)}, line {line}: {text}" for path, line, text in complaints]
    assert not told, "\n".join(told)


def test_rooms() -> None:
    def complaints() -> Complaints:
        for path in sources():
            room = room_of(path)
            if room in OUTERMOST:
                continue  # the outermost shells; what they must not do is below
            may = MAY_IMPORT[room] | {room} | EXCEPTIONS.get(named(path), set())
            for line, module, names in imports(path):
                extra = twinbus_targets(module, names) - may
                if extra:
                    yield path, line, f"{room} must not know {', '.join(sorted(extra))}"

    check(complaints())


def test_nobody_imports_the_outermost_rooms() -> None:
    def complaints() -> Complaints:
        for path in sources():
            room = room_of(path)
            for line, module, names in imports(path):
                targets = twinbus_targets(module, names)
                if "cli" in targets and room not in {"cli", "__main__"}:
                    yield path, line, "imports cli"
                if "testing" in targets and room != "testing":
                    yield path, line, "imports testing"

    check(complaints())


def test_the_world_stays_outside() -> None:
    def complaints() -> Complaints:
        for path in sources():
            room = room_of(path)
            for line, module, names in imports(path):
                top = module.split(".")[0]
                if room in PURE and top in IMPURE_MODULES:
                    yield path, line, f"{room} is pure, {top} is not"
                if room in PURE | {"storage"} and module == "twinbus.clock" and names != ["Now"]:
                    yield path, line, f"{room} is handed the time, it reads no clock"
                is_disk = room != "storage" or path.name in {"disk.py", "ring.py"}
                if not is_disk and top in FILE_MODULES:
                    yield path, line, "only storage/disk.py touches files"
                may = room in MAY_USE_ASYNCIO or named(path) in ASYNCIO_SHELLS
                may = may or named(path).startswith("pairing/aio/")
                if top == "asyncio" and not may:
                    yield path, line, "asyncio lives in the shells"

    check(complaints())


def complaints_about_pairing(path: Path) -> Complaints:
    name = path.relative_to(PACKAGE / "pairing").as_posix()
    is_async = name.startswith("aio/")
    is_shell = is_async or name.startswith("blocking/") or name == "__init__.py"
    for line, module, names in imports(path):
        top = module.split(".")[0]
        if module.startswith("twinbus.entities") and module != "twinbus.entities.partitions":
            yield path, line, "only the hash of keys"
        is_key = module == "twinbus.message.producer_keys"
        if module.startswith("twinbus.message") and not is_key and names != ["wire_names"]:
            yield path, line, "only the names on the wire, and the section of a producer key"
        if top in PAIRING_PURE_NEVER and not is_shell:
            yield path, line, f"it is pure, {top} is not"
        if top == "random" and names and not is_shell:
            yield path, line, "chance is handed in"
        if (".aio" in module or "pairing.blocking" in module) and not is_shell:
            yield path, line, "it knows no shell"
        if top == "asyncio" and not is_async:
            yield path, line, "asyncio lives in pairing/aio"
        if top == "threading" and is_async:
            yield path, line, "the async shell has no threads"


def test_pairing_decides_without_the_world() -> None:
    for path in sorted((PACKAGE / "pairing").rglob("*.py")):
        check(complaints_about_pairing(path))


def test_the_shells_of_pairing_mirror_each_other() -> None:
    blocking, on_a_loop = (
        {path.name for path in (PACKAGE / "pairing" / shell).glob("*.py")}
        for shell in ("blocking", "aio")
    )
    assert blocking - on_a_loop == {"_opening.py", "_posting.py"}
    assert on_a_loop - blocking == {"_watch.py"}


def sub_room_of(name: str) -> str:
    """Of `gateway/faults/link.py`, `gateway/faults`; of `gateway/gateway.py`, `gateway`."""
    return name.rpartition("/")[0]


def crossings() -> Iterator[tuple[str, str, str]]:
    """Every import over the border of a package: importing file, package, module and name."""
    files = {named(path): path for path in sources()}
    for name, path in files.items():
        own = sub_room_of(name)
        for _, module, imported in imports(path):
            if not module.startswith("twinbus."):
                continue
            target = module.removeprefix("twinbus.").replace(".", "/")
            for each in imported or [""]:
                inner = f"{target}/{each}"
                where, what = (inner, "") if f"{inner}.py" in files else (target, each)
                room = sub_room_of(where)
                # A sub-room may use all of the room that it is in.
                is_inside = own == room or own.startswith(room + "/")
                if f"{where}.py" in files and room and not is_inside:
                    yield name, where, what


def doors(room: str) -> set[str]:
    """The modules that a package lets others use."""
    if room in PUBLIC_DOORS:
        return PUBLIC_DOORS[room]
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text())
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == "__all__" for each in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            return set(ast.literal_eval(node.value))
    raise AssertionError(f"{room}/__init__.py does not say what others may use (__all__)")


def test_others_come_in_by_the_doors() -> None:
    faults = []
    for importer, module, what in crossings():
        room, _, door = module.rpartition("/")
        if door not in doors(room):
            faults.append(f"{importer} imports {module}, which is {room}'s own")
        if what.startswith("_"):
            faults.append(f"{importer} imports {what} of {module}, which is that module's own")
    assert not faults, "\n".join(sorted(set(faults)))


def test_every_door_is_used() -> None:
    """What nobody comes in by is a wall; `cli` opens its own by name."""
    used = {(sub_room_of(module), module.rpartition("/")[2]) for _, module, _ in crossings()}
    rooms = {sub_room_of(named(path)) for path in sources()} - {
        "",
        "page",
        "client",
        "host/brokers",
    }
    for room in rooms:
        if not room.startswith("cli"):
            assert {(room, door) for door in doors(room)} <= used, f"{room} has doors for nobody"


def test_few_names_cross_a_border() -> None:
    names: dict[str, set[tuple[str, str]]] = {}
    for _, module, what in crossings():
        names.setdefault(sub_room_of(module), set()).add((module, what))
    crowded = {
        room: len(found)
        for room, found in names.items()
        if len(found) > VOCABULARIES.get(room, NAMES_MAX)
    }
    assert not crowded


@pytest.mark.parametrize("room", INSIDE)
def test_sub_rooms_know_only_what_is_below_them(room: str) -> None:
    levels = {f"{room}/{each}": at for at, level in enumerate(INSIDE[room]) for each in level}

    def level_of(module: str) -> tuple[str, int]:
        found = max((each for each in levels if f"{module}/".startswith(each + "/")), key=len)
        return found, levels[found]

    for path in sorted((PACKAGE / room).rglob("*.py")):
        own, level = ("", 0) if path.name == "__init__.py" else level_of(named(path)[:-3])
        for line, module, _ in imports(path):
            target = module.removeprefix("twinbus.").replace(".", "/")
            if not target.startswith(room + "/"):
                continue
            other, below = level_of(target)
            assert other == own or below < level, (
                f"{path}: line {line}: {own} must not know {other}"
            )


def import_graph() -> dict[str, set[str]]:
    """Which module of ours imports which."""
    names: dict[str, Path] = {}
    for path in sources():
        parts = ("twinbus", *path.relative_to(PACKAGE).with_suffix("").parts)
        names[".".join(parts).removesuffix(".__init__")] = path
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        wanted: set[str] = set()
        for _, module, imported in imports(path):
            inner = {f"{module}.{each}" for each in imported} & names.keys()
            # `from package import name` needs the package itself only for what is no module.
            wanted |= inner if len(inner) == len(imported) > 0 else inner | {module}
        graph[name] = (wanted & names.keys()) - {name}
    return graph


def reached_from(start: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = graph[waiting.pop()] - found
        found |= fresh
        waiting += fresh
    return found


def test_no_import_cycles() -> None:
    graph = import_graph()
    reached = {name: reached_from(name, graph) for name in graph}
    circles = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    assert not circles, "\n".join(" ⇄ ".join(each) for each in sorted(circles))


def test_every_room_has_a_rule() -> None:
    rooms = {room_of(path) for path in sources()} - OUTERMOST
    assert rooms <= set(MAY_IMPORT), "a new room needs its line in MAY_IMPORT and in README.md"


def test_every_room_is_in_the_table() -> None:
    table = (PACKAGE / "README.md").read_text()
    folders = {path.parent.name for path in PACKAGE.glob("*/*.py")}
    for folder in folders:
        assert f"| `{folder}/` |" in table
