"""The house rules that no linter knows, checked on every file of the repository."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "twinbus"

FILE_LINES_MAX = 500
TEST_LINES_MAX = 700  # a long list of cases is easier to read than several short ones
FUNCTION_LINES_MAX = 70
METHODS_MAX = 30
ROOM_FILES_MAX = 30

# Put together here, so that this file does not break its own rule.
UNFINISHED = re.compile(
    r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b"
)
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|home|root|Users)/\w")

# One word per thing, and Service Bus's words: what each of these would be called instead.
BANNED_WORDS = {
    "ack": "settle, complete or reply",
    "nack": "abandon",
    "util": "what it does",
    "utils": "what it does",
    "helper": "what it does",
    "helpers": "what it does",
    "manager": "what it manages",
    "payload": "body",
    "job": "task",
    "dequeue": "receive",
}

# Only storage/disk.py touches what has to be durable; these read or write small files of their own.
MAY_TOUCH_FILES = (
    "storage/disk.py",
    "config.py",
    "emulator_config.py",
    "certificates.py",
    "launch.py",  # what the server that it started has written to standard error
    "host/brokers/worker.py",  # how much memory it has, from /proc
    "host/brokers/diagnostics.py",  # evidence: nothing durable rests on it
    "gateway/health/usage.py",  # what the kernel says of memory
    "server/http/page/cost.py",  # the table of prices that comes along
    "cli/",
    "drill/",  # ledgers and logs of a rehearsal
    "page/",  # what it hands to browsers: files of the package
    "pipeline/",  # caches, reports and ledgers: files of Spark's world, not of a bus
    "testing/",
)
FILE_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "mkdir"}
MAY_READ_TIME = ("clock.py", "testing/")
TIME_CALLS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "utcnow", "today"}
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "yaml"}
# What a queue decides when a command asks for it.  (Walks may `peek`, too.)
BEHIND_THE_DOOR = {
    "cancel_scheduled",
    "list_sessions",
    "receive_deferred",
    "receive_deferred_of",
    "renew",
    "renew_session",
    "send",
    "send_carried",
    "session_state",
    "set_session_state",
    "settle",
}
MAY_KNOW_QUEUE_CLASSES = ("entities/", "storage/entity_index.py")
# Between a server and the processes it has started itself, on a socketpair nobody else can reach.
MAY_USE_MARSHAL = ("links/remote/channel.py",)


def tracked(suffix: str) -> list[Path]:
    """Files of this kind that belong to the repository, new ones included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"*{suffix}"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        paths = [ROOT / line for line in listed.stdout.splitlines()]
    else:  # an unpacked source archive is no git repository
        folders = [ROOT / name for name in ("src", "tests", "docs", "examples", "bench")]
        paths = [path for folder in folders for path in folder.rglob(f"*{suffix}")]
        paths += ROOT.glob(f"*{suffix}")
    return sorted(path for path in paths if path.is_file())


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PYTHON = tracked(".py")
SOURCES = [path for path in PYTHON if path.is_relative_to(PACKAGE)]
MARKDOWN = tracked(".md")


def allowed(path: Path, places: tuple[str, ...]) -> bool:
    name = path.relative_to(PACKAGE).as_posix()
    return any(
        name == place or (place.endswith("/") and name.startswith(place)) for place in places
    )


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def called(node: ast.Call) -> tuple[str, str]:
    """What a call is made on, and its name: `("time", "monotonic")`, `("", "open")`."""
    if isinstance(node.func, ast.Attribute):
        value = node.func.value
        return (value.id if isinstance(value, ast.Name) else "?"), node.func.attr
    return "", node.func.id if isinstance(node.func, ast.Name) else "?"


def test_the_repository_is_seen() -> None:
    """A rule that looks at nothing would hold for ever."""
    assert len(SOURCES) > 20
    assert len(MARKDOWN) > 5


def check(faults_of: Callable[[Path], list[str]], paths: list[Path]) -> None:
    """No file has a fault; whichever has is told with its name."""
    told = [f"{named(path)}: {fault}" for path in paths for fault in faults_of(path)]
    assert not told, "\n".join(told)


def test_python_files() -> None:
    check(faults_of_python, PYTHON)


def faults_of_python(path: Path) -> list[str]:
    text = path.read_text()
    tree = ast.parse(text)
    faults = []
    docstring = ast.get_docstring(tree) or ""
    if len(docstring) < 10:
        faults.append("no module docstring that says anything")
    for function in functions(tree):
        assert function.end_lineno is not None
        if function.end_lineno - function.lineno >= FUNCTION_LINES_MAX:
            faults.append(
                f"line {function.lineno}: {function.name} is over {FUNCTION_LINES_MAX} lines"
            )
    faults += [
        f"line {number}: unfinished or machine-specific: {line.strip()}"
        for number, line in enumerate(text.splitlines(), start=1)
        if UNFINISHED.search(line) or MACHINE_PATHS.search(line)
    ]
    return faults


def test_no_file_is_too_long() -> None:
    long = set()
    for path in PYTHON:
        lines_max = FILE_LINES_MAX if path.is_relative_to(PACKAGE) else TEST_LINES_MAX
        if path.read_text().count("\n") > lines_max:
            long.add(named(path))
    assert not long


def test_a_class_of_many_methods_says_why() -> None:
    """Its docstring has a sentence on its methods."""
    crowded = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [
                    each
                    for each in node.body
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                ]
                says_why = "methods" in (ast.get_docstring(node) or "")
                if len(methods) > METHODS_MAX and not says_why:
                    crowded.add(node.name)
    assert not crowded


def test_no_room_is_crowded() -> None:
    counts = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in SOURCES)
    crowded = {room for room, count in counts.items() if count > ROOM_FILES_MAX}
    assert not crowded


def test_source_files() -> None:
    check(faults_of_source, SOURCES)


def faults_of_source(path: Path) -> list[str]:
    faults = []
    for node in ast.walk(ast.parse(path.read_text())):
        line = f"line {getattr(node, 'lineno', 0)}: "
        if isinstance(node, ast.Call):
            base, name = called(node)
            opens = name == "open" and base in {"", "os", "io"}
            if (opens or name in FILE_METHODS) and not allowed(path, MAY_TOUCH_FILES):
                faults.append(f"{line}{name}() belongs in storage/disk.py")
            reads_time = base in {"time", "datetime", "dt", "date"} and name in TIME_CALLS | {"now"}
            if reads_time and not allowed(path, MAY_READ_TIME):
                faults.append(f"{line}only clock.py reads time; take `now` as an argument")
            if base == "" and name in {"eval", "exec", "compile"}:
                faults.append(f"{line}{name}() runs text as code")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names} | {str(getattr(node, "module", ""))}
            unsafe = names & UNSAFE_MODULES
            if allowed(path, MAY_USE_MARSHAL):
                unsafe -= {"marshal"}
            faults += [f"{line}{name} is unsafe to read" for name in sorted(unsafe)]
    return faults


def test_a_queue_is_asked_and_not_looked_at() -> None:
    """What it does is its class's business: only the room itself, and the index, may know it."""
    classes = queue_classes()
    assert {"Queue", "SessionQueue", "Topic"} <= classes
    others = [path for path in SOURCES if not allowed(path, MAY_KNOW_QUEUE_CLASSES)]

    def faults_of(path: Path) -> list[str]:
        return [
            f"line {node.lineno}: ask the queue, whatever its class"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
            and called(node) == ("", "isinstance")
            and classes & {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
        ]

    check(faults_of, others)


def entity_trees() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in (PACKAGE / "entities").glob("*.py")]


def queue_classes() -> set[str]:
    """All classes of entities that hold messages."""
    found = {"QueueState"}
    nodes = [node for tree in entity_trees() for node in tree.body]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    count = 0
    while count < len(found):
        count = len(found)
        for node in classes:
            if found & {base.id for base in node.bases if isinstance(base, ast.Name)}:
                found.add(node.name)
    return found


def test_commands_come_in_by_one_door() -> None:
    """Whoever has a queue at hand lets `apply` decide, and does not go round it."""
    assert {each.name for tree in entity_trees() for each in functions(tree)} >= BEHIND_THE_DOOR

    def faults_of(path: Path) -> list[str]:
        return [
            f"line {node.lineno}: {called(node)[1]}() is behind Queue.apply"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and called(node)[1] in BEHIND_THE_DOOR
        ]

    check(faults_of, [path for path in SOURCES if allowed(path, ("broker/", "storage/"))])


def test_one_word_per_thing() -> None:
    check(wrong_words, SOURCES)


def test_names_on_the_wire_are_spelled_once() -> None:
    """The annotations of Service Bus, as constants: documentation may name them."""
    for path in SOURCES:
        if path.name == "wire_names.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            value = node.value if isinstance(node, ast.Constant) else None
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            is_name = isinstance(text, str) and text.startswith("x-opt-")
            assert not is_name, f"{named(path)}: {text} is in message/wire_names.py"


def wrong_words(path: Path) -> list[str]:
    names = {path.stem: 1}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names[node.name] = node.lineno
    faults = []
    for name, line in names.items():
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
        faults += [
            f"line {line}: {name}: say {BANNED_WORDS[word]}"
            for word in words
            if word in BANNED_WORDS
        ]
    return faults


def test_markdown_files() -> None:
    check(faults_of_markdown, MARKDOWN)


def faults_of_markdown(path: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^# .+$", text, flags=re.MULTILINE)
    faults = [] if len(titles) == 1 else [f"one title, not {titles}"]
    if not text.startswith("# "):
        faults.append("the title comes first")
    if UNFINISHED.search(text) or MACHINE_PATHS.search(text):
        faults.append("unfinished or machine-specific")
    faults += [
        f"the link to {target} leads nowhere"
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
        if "://" not in target and not (path.parent / target).exists()
    ]
    return faults
