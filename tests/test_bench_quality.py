"""The measurement of how well is found: its figures over a small set, counted by hand."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WAIT_S = 120
SECOND = 1 / math.log2(3)  # what a second place gains

DOCUMENTS = [
    {"id": "a:walrus", "title": "Walrus", "text": "The walrus has ivory tusks and a moustache.", "scope": "a"},
    {"id": "a:copy of walrus", "title": "Walrus", "text": "The walrus has ivory tusks and a moustache.", "scope": "a"},
    {"id": "a:seal", "title": "Seal", "text": "Ana: A seal sleeps near a walrus, far out on the floe.", "scope": "a"},
    {"id": "b:old", "title": "Gate", "text": "The gate code is 4711. Hit the xylophone.", "scope": "b"},
    {
        "id": "b:new",
        "title": "Gate",
        "text": "The gate code is 4712. Ring a bell.",
        "date": "2024-05-01",
        "scope": "b",
    },
]
QUESTIONS = [
    {"id": "copy", "query": "ivory tusks and moustache", "relevant": ["a:copy of walrus"], "scope": "a"},
    {"id": "second", "query": "walrus ivory tusks moustache", "relevant": ["a:seal"], "scope": "a"},
    {
        "id": "without",
        "query": "walrus ivory tusks moustache",
        "relevant": ["a:seal"],
        "scope": "a",
        "exclude": ["a:walrus", "a:copy of walrus"],
    },
    {"id": "older", "query": "gate code", "relevant": ["b:old"], "scope": "b"},
    {"id": "both", "query": "xylophone", "relevant": ["b:old", "b:new"], "scope": "b"},
    {"id": "nothing", "query": "zebra", "relevant": ["b:old"], "scope": "b"},
]


def _write(folder: Path, name: str, documents: list[dict], questions: list[dict]) -> None:
    for file, rows in (("docs", documents), ("queries", questions)):
        path = folder / name / f"{file}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    """A folder with one set, `tiny`."""
    _write(tmp_path / "sets", "tiny", DOCUMENTS, [{**each, "category": each["scope"]} for each in QUESTIONS])
    return tmp_path / "sets"


def _run(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "LNK_BENCH_SETS"}
    return subprocess.run(
        [sys.executable, "-m", "bench.quality", *map(str, arguments)],
        cwd=ROOT,
        env=environment | env,
        capture_output=True,
        encoding="utf-8",
        timeout=WAIT_S,
    )


def _measured(sets: Path, *arguments: str | Path) -> dict:
    data = sets.parent / "data"
    done = _run("--sets", sets, "--data", data, *arguments)
    assert done.returncode == 0, done.stderr
    assert list(data.iterdir()) == []
    return json.loads(done.stdout)


@pytest.mark.parametrize("form", ["documents", "conversations", "paragraphs"])
def test_the_figures_are_those_counted_by_hand(sets, form):
    """Places: copy 1, second 2, without 1, older 2, both 1 and none, nothing none."""
    told = _measured(sets, "tiny", "--form", form)
    (found,) = told["sets"]
    measured = {name: found.pop(name) for name in ("indexing_s", "embedding_s", "median_ms")}
    assert all(value >= 0 for value in measured.values())
    assert found == {
        "set": "tiny",
        "encoder": "none",
        "form": form,
        "n": 6,
        "hit@1": 0.5,
        "hit@1_se": round(math.sqrt(0.25 / 6), 4),
        "hit@5": round(5 / 6, 4),
        "hit@10": round(5 / 6, 4),
        "recall@5": round((1 + 1 + 1 + 1 + 0.5) / 6, 4),
        "ndcg@10": round((1 + SECOND + 1 + SECOND + 1 / (1 + SECOND)) / 6, 4),
        "mrr@10": round((1 + 0.5 + 1 + 0.5 + 1) / 6, 4),
        "categories": {
            "a": _figures(2 / 3, 1, 1, (2 + SECOND) / 3, 2.5 / 3),
            "b": _figures(1 / 3, 2 / 3, 0.5, (SECOND + 1 / (1 + SECOND)) / 3, 0.5),
        },
        "mean_hit@1": 0.5,
        "worst_hit@1": round(1 / 3, 4),
        "worst": "b",
        "found_by_meaning": 0.0,
        "documents": 5,
        "chunks": 5,
    }
    assert (told["measurement"], told["which"]) == ("quality", "open")
    assert told["constants"]["ranking"]["BEST"] == told["constants"]["lexical"]["BEST"] > 0
    assert isinstance(told["constants"]["ranking"]["CHUNK_SHARES"], list)


def _figures(hit_1: float, hit: float, recall: float, gain: float, first: float) -> dict[str, float]:
    """The figures of a category of three questions; no place is behind the fifth."""
    exact = {"hit@1": hit_1, "hit@5": hit, "hit@10": hit, "recall@5": recall, "ndcg@10": gain, "mrr@10": first}
    error = math.sqrt(hit_1 * (1 - hit_1) / 3)
    return {"n": 3, **{name: round(value, 4) for name, value in exact.items()}, "hit@1_se": round(error, 4)}


def test_a_saved_run_tells_what_another_does_better_and_worse(sets, tmp_path):
    file = tmp_path / "run.jsonl"
    _measured(sets, "--save", file)
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    ranked = {line["id"]: line["ranked"] for line in lines}
    assert {(line["set"], line["encoder"]) for line in lines} == {("tiny", "none")}
    shown, *copies = ranked["copy"][0], *lines[0]["copies"][ranked["copy"][0]]
    assert (shown, copies) == ("a:walrus", ["a:copy of walrus"])
    del lines[0]["copies"]
    assert ranked == {
        "copy": ["a:walrus"],
        "second": ["a:walrus", "a:seal"],
        "without": ["a:seal"],
        "older": ["b:new", "b:old"],
        "both": ["b:old"],
        "nothing": [],
    }
    assert _measured(sets, "--against", file)["sets"][0]["against"] == _compared(better=0, worse=0)
    lines[2]["ranked"], lines[5]["ranked"] = [], ["b:old"]  # one is better now, and one worse; and the copy is better
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert _measured(sets, "--against", file)["sets"][0]["against"] == _compared(better=2, worse=1)


def _compared(better: int, worse: int) -> dict[str, object]:
    return {"encoder": "none", "of": 6, "better": better, "worse": worse}


def test_held_questions_come_from_their_own_folder(sets, tmp_path):
    held = [{"id": "held", "query": "xylophone", "relevant": ["b:old"], "scope": "b"}]
    _write(tmp_path / "held", "tiny", [], held)
    found = _measured(sets, "--held", tmp_path / "held", "--which", "held")["sets"][0]
    assert (found["n"], found["hit@1"], found["documents"]) == (1, 1.0, 2)
    found = _measured(sets, "--held", tmp_path / "held", "--which", "all")["sets"][0]
    assert (found["n"], found["hit@1"], found["documents"]) == (7, round(4 / 7, 4), 5)


def test_the_newer_of_two_versions_is_told_from_the_older(sets, tmp_path):
    """Nine memories; the versions differ so much that none is taken for a copy."""
    things = ["anvil", "bucket", "candle", "drum", "easel", "funnel", "goblet", "hammer", "icebox"]
    text = "The {0} is kept in the shed with the tools and never on the table, for all of us use the {0} before lunch."
    documents = [{"id": each, "title": each.title(), "text": text.format(each)} for each in things]
    _write(sets, "link_recall", documents, [{"id": each, "query": each, "relevant": [each]} for each in things])
    file = tmp_path / "run.jsonl"
    (found,) = _measured(sets, "old_new", "--save", file)["sets"]
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert {tuple(sorted(line["ranked"])) for line in lines} == {(f"{each}.1", f"{each}.2") for each in things}
    assert [line for line in lines if "copies" in line] == []
    assert (found["documents"], found["n"], found["either_found"]) == (18, 9, 9)
    assert {name: each["n"] for name, each in found["categories"].items()} == {"changed": 3, "longer": 3, "shorter": 3}
    newer = [f"{each}.{1 + number % 2}" for number, each in enumerate(things)]
    first = sum(line["ranked"][0] == each for line, each in zip(lines, newer, strict=True))
    assert found["newer_above_older"] == found["hit@1"] == round(first / 9, 4)


def test_questions_go_across_languages(sets):
    documents = [
        {"id": "en:p1", "text": "Kuechly led the team with 118 tackles.", "scope": "en"},
        {"id": "zh:p1", "text": "球队由 Kuechly 领衔，共有擒抱。", "scope": "zh"},
        {"id": "de:p1", "text": "Kuechly führte die Mannschaft.", "scope": "de"},
    ]
    questions = [
        {"id": "en:q", "query": "How many tackles did Kuechly have?", "relevant": ["en:p1"], "scope": "en"},
        {"id": "zh:q", "query": "擒抱多少次？", "relevant": ["zh:p1"], "scope": "zh"},
    ]
    _write(sets, "xquad", documents, questions)
    (found,) = _measured(sets, "xquad_across")["sets"]
    ways = {way: (each["n"], each["hit@1"]) for way, each in found["categories"].items()}
    assert (ways, found["documents"]) == ({"en to zh": (1, 1.0), "zh to en": (1, 0.0)}, 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "No sets to ask: say with --sets DIR or $LNK_BENCH_SETS which folder holds them."),
        (("--sets", "{nowhere}"), "There is no folder of sets at {nowhere}; name one with --sets or $LNK_BENCH_SETS."),
        (("--sets", "{sets}", "huge"), "There is no set 'huge' in {sets}; there are tiny."),
        (
            ("--sets", "{sets}", "--which", "held"),
            "--which held asks questions that were held out; say with --held where they are.",
        ),
        (
            ("--sets", "{sets}", "--encoder", "http://localhost:1/v1"),
            "--encoder is 'http://localhost:1/v1'; give none, builtin, or a model's name and its address as NAME=URL.",
        ),
    ],
    ids=["no sets", "no folder", "no such set", "nothing held", "no name"],
)
def test_what_is_not_there_is_said_in_one_sentence(sets, arguments, sentence):
    places = {"sets": sets, "nowhere": sets / "nowhere"}
    done = _run(*(each.format(**places) for each in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"bench.quality: {sentence.format(**places)}\n"


def test_the_folder_of_sets_may_come_from_the_environment(sets):
    done = _run("--data", sets.parent / "data", LNK_BENCH_SETS=str(sets))
    assert (done.returncode, json.loads(done.stdout)["sets"][0]["n"]) == (0, 6)
