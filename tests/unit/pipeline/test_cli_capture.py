"""Arguments of capture, replay and dead letters that make no sense: refused before Spark starts."""

from pathlib import Path

import pytest

from twinbus.cli.main import main, parser
from twinbus.cli.pipeline.capture import source_options

BUS = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=x;UseDevelopmentEmulator=true"


@pytest.fixture(autouse=True)
def connection_string(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINBUS_CONNECTION_STRING", BUS)


def test_a_capture_asks_the_source_for_exact_copies() -> None:
    words = "pipeline capture --entity a --entity b/Subscriptions/c --to d --delete"
    options = parser("pipeline").parse_args(words.split())
    assert source_options(options) == {
        "connectionString": BUS,
        "entityPaths": "a,b/Subscriptions/c",
        "subQueue": "none",
        "includeAmqp": "true",
        "settle": "delete",
        "maxOffsetsPerTrigger": "100000",
    }


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("capture --pattern ( --to d", "entityPattern is a regular expression"),
        ("replay --from d", "no destination"),
        ("replay --from d --to q --as-scheduled", "--as-scheduled alone"),
        ("replay --from d --map-file nowhere", "cannot read nowhere"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    words: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", *words.split()]) == 1
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("capture --to d", "--entity --pattern"),
        ("capture --entity q --to d --max-per-batch 0", "not a whole number above 0"),
        ("replay --from d --to q --rate 0", "not a number above 0"),
        ("replay --from d --map q", "NAME=VALUE"),
        ("replay --from d --to q --from-time yesterday", "is not a time"),
        ("replay --from d --to q --keep-pace --speed 2", "not allowed with"),
        ("dead-letters show", "--entity --all"),
        ("dead-letters resubmit --all --limit -1", "not a whole number above 0"),
    ],
)
def test_words_that_are_none(words: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", *words.split()])
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_mapping_file_is_read_line_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "map"
    path.write_text("# old=new\n\norders = again\nnonsense\n")
    assert main(["pipeline", "replay", "--from", "d", "--map-file", str(path)]) == 1
    assert "line 4: 'nonsense' is not of the form" in capsys.readouterr().err
